#include "mask/window_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "heddle/error.h"

namespace heddle::mask {
namespace {

constexpr std::int32_t kColumns = RunWindows::kColumns;

}  // namespace

WindowStore::WindowStore(const RunWindows& windows) {
  for (std::size_t i = 0; i + 1 < windows.offset.size(); ++i) {
    add(std::span(windows.runs)
            .subspan(static_cast<std::size_t>(windows.offset[i]),
                     static_cast<std::size_t>(windows.offset[i + 1] - windows.offset[i])));
  }
}

std::span<const WindowRun> WindowStore::content(std::int32_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return std::span(windows_.runs)
      .subspan(static_cast<std::size_t>(windows_.offset[i]),
               static_cast<std::size_t>(windows_.offset[i + 1] - windows_.offset[i]));
}

std::int32_t WindowStore::add(std::span<const WindowRun> content) {
  static_assert(sizeof(WindowRun) == 3);  // no padding, so equal contents have equal bytes
  const std::int64_t known = indices_.size();
  if (known == std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the block mask's rows have more than {} different windows of {} blocks; larger blocks "
                            "make fewer",
                            known, kColumns));
  }
  const std::int32_t index =
      indices_.find_or_add(base::hash_bytes(content.data(), content.size_bytes()),
                           [&](std::int32_t other) { return std::ranges::equal(this->content(other), content); });
  if (index == known) {
    windows_.runs.insert(windows_.runs.end(), content.begin(), content.end());
    windows_.offset.push_back(std::ssize(windows_.runs));
  }
  return index;
}

void WindowStore::cut(const RowRuns& row, std::vector<std::int32_t>& contents) {
  contents.clear();
  content_.clear();
  std::int32_t first = 0;  // column of the window at hand
  const auto close = [&] {
    contents.push_back(add(content_));
    content_.clear();
    first += kColumns;
  };
  for (const Run& run : row) {
    for (std::int32_t begin = run.begin; begin < run.end;) {
      while (begin >= first + kColumns) close();
      const std::int32_t end = std::min(run.end, first + kColumns);
      content_.push_back({static_cast<std::uint8_t>(begin - first), static_cast<std::uint8_t>(end - first), run.kind});
      begin = end;
    }
  }
  if (!content_.empty()) close();
}

RunWindows WindowStore::take() {
  windows_.runs.shrink_to_fit();
  windows_.offset.shrink_to_fit();
  RunWindows taken = std::move(windows_);
  *this = {};
  return taken;
}

std::int64_t count_runs(std::span<const std::int32_t> contents, const WindowStore& store) {
  std::int64_t runs = 0;
  const WindowRun* last = nullptr;  // run of the window before, if it reaches that window's end
  for (const std::int32_t index : contents) {
    const std::span<const WindowRun> content = store.content(index);
    runs += std::ssize(content);
    if (!content.empty() && last != nullptr && content.front().begin == 0 && content.front().kind == last->kind) --runs;
    last = !content.empty() && content.back().end == kColumns ? &content.back() : nullptr;
  }
  return runs;
}

}  // namespace heddle::mask
