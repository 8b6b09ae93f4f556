#include "mask/window_columns.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "mask/groups.h"
#include "mask/shape.h"

namespace heddle::mask {
namespace {

enum : std::uint8_t { kNone = 0, kPartial = 1, kFull = 2 };

}  // namespace

WindowColumns::WindowColumns(const BlockMaskAccess::State& state, std::span<const std::int32_t> stored,
                             std::span<const std::int32_t> row_of, std::int64_t columns)
    : row_of_(row_of), columns_(columns), windows_(state.windows), nothing_(windows_.add({})) {
  struct Part {
    std::size_t begin, size;
  };
  std::vector<Part> parts;  // of cut_, by row
  std::vector<std::int32_t> contents;
  for (const std::int32_t index : stored) {
    const auto i = static_cast<std::size_t>(index);
    const bool has_windows = !state.window_offset.empty() && state.window_offset[i] != state.window_offset[i + 1];
    rows_.push_back({});
    parts.push_back({cut_.size(), 0});
    if (has_windows) {
      rows_.back() = std::span(state.window_contents)
                         .subspan(static_cast<std::size_t>(state.window_offset[i]),
                                  static_cast<std::size_t>(state.window_offset[i + 1] - state.window_offset[i]));
      continue;
    }
    windows_.cut(stored_runs(state, index), contents);
    parts.back().size = contents.size();
    cut_.insert(cut_.end(), contents.begin(), contents.end());
  }
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (parts[r].size > 0) rows_[r] = std::span(cut_).subspan(parts[r].begin, parts[r].size);
  }
}

std::int32_t WindowColumns::content(std::int32_t row, std::size_t window) const {
  const std::span<const std::int32_t> contents = rows_[static_cast<std::size_t>(row)];
  return window < contents.size() ? contents[window] : nothing_;
}

std::int32_t WindowColumns::tile_of(std::size_t band, std::size_t window, RowStore& to) {
  Tile tile;
  tile.fill(nothing_);
  const std::size_t first = band * kSide, rows = std::min(kSide, row_of_.size() - first);
  for (std::size_t r = 0; r < rows; ++r) tile[r] = content(row_of_[first + r], window);
  const std::int64_t known = tiles_.size();
  const std::int32_t index = tiles_.find_or_add(base::hash_bytes(tile.data(), sizeof(tile)), [&](std::int32_t other) {
    return upright_[static_cast<std::size_t>(other)] == tile;
  });
  if (index == known) {
    upright_.push_back(tile);
    turned_.push_back(turned(tile, to));
  }
  return index;
}

WindowColumns::Tile WindowColumns::turned(const Tile& rows, RowStore& to) const {
  std::array<std::array<std::uint8_t, kSide>, kSide> blocks{};
  for (std::size_t r = 0; r < kSide; ++r) {
    for (const WindowRun& run : windows_.content(rows[r])) {
      std::memset(blocks[r].data() + run.begin, run.kind == RunKind::full ? kFull : kPartial,
                  static_cast<std::size_t>(run.end - run.begin));
    }
  }
  Tile columns;
  std::array<WindowRun, kSide> runs;
  for (std::size_t c = 0; c < kSide; ++c) {
    std::size_t count = 0;
    std::uint8_t above = kNone;
    for (std::size_t r = 0; r < kSide; ++r) {
      const std::uint8_t here = blocks[r][c];
      if (here != kNone) {
        if (here != above) {
          runs[count++] = {static_cast<std::uint8_t>(r), 0, here == kFull ? RunKind::full : RunKind::partial};
        }
        runs[count - 1].end = static_cast<std::uint8_t>(r + 1);
      }
      above = here;
    }
    columns[c] = to.windows().add(std::span(runs).first(count));
  }
  return columns;
}

void WindowColumns::add_to(RowStore& to) {
  const auto bands = static_cast<std::size_t>(block_count(std::ssize(row_of_), RunWindows::kColumns));
  const auto windows = static_cast<std::size_t>(block_count(columns_, RunWindows::kColumns));
  std::vector<std::int32_t> tiles(bands), contents(bands);
  for (std::size_t window = 0; window < windows; ++window) {
    for (std::size_t band = 0; band < bands; ++band) tiles[band] = tile_of(band, window, to);
    const std::size_t first = window * kSide, count = std::min(kSide, static_cast<std::size_t>(columns_) - first);
    for (std::size_t c = 0; c < count; ++c) {
      for (std::size_t band = 0; band < bands; ++band) {
        contents[band] = turned_[static_cast<std::size_t>(tiles[band])][c];
      }
      to.add_windows(contents);
    }
  }
}

}  // namespace heddle::mask
