#include "mask/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "heddle/error.h"

namespace heddle::mask {
namespace {

/// Rows of fewer runs, or of fewer in a window, are kept as runs. From there on windows take less memory even if no two
/// are equal: 12 bytes each and 3 a run, cut runs twice, instead of 12 a run.
constexpr std::int64_t kManyRuns = 32, kManyInWindow = 4;

bool are_many(std::int64_t runs, std::int64_t windows) { return runs >= kManyRuns && runs >= kManyInWindow * windows; }

std::int64_t windows_of(std::span<const Run> row) {
  return row.empty() ? 0 : (row.back().end - 1) / RunWindows::kColumns + 1;
}

std::uint64_t hash_of(std::span<const Run> row) {
  std::uint64_t hash = row.size();
  for (const Run& run : row) {
    const std::uint64_t ends = static_cast<std::uint64_t>(run.begin) << 32 | static_cast<std::uint32_t>(run.end);
    hash = base::hash_combine(hash, ends * 2 + (run.kind == RunKind::full ? 1 : 0));
  }
  return hash;
}

template <class T>
std::span<const T> between(const std::vector<T>& values, const std::vector<std::int64_t>& offset, std::int32_t index) {
  const auto i = static_cast<std::size_t>(index);
  return std::span(values).subspan(static_cast<std::size_t>(offset[i]),
                                   static_cast<std::size_t>(offset[i + 1] - offset[i]));
}

}  // namespace

std::span<const Run> RowStore::stored_runs(std::int32_t index) const { return between(runs_, offset_, index); }

std::span<const std::int32_t> RowStore::stored_windows(std::int32_t index) const {
  if (window_offset_.empty()) return {};
  return between(window_contents_, window_offset_, index);
}

void RowStore::check_room() const {
  if (indices_.size() > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::unsupported, fmt::format("the block mask has more than {} different rows; blocks of more "
                                                    "queries make fewer",
                                                    std::numeric_limits<std::int32_t>::max()));
  }
}

void RowStore::add(std::span<const Run> row) {
  if (are_many(std::ssize(row), windows_of(row))) {
    windows_.cut(row, cut_);
    return add_many(cut_);
  }
  check_room();
  const std::int64_t known = indices_.size();
  const std::int32_t index = indices_.find_or_add(hash_of(row), [&](std::int32_t other) {
    return stored_windows(other).empty() && std::ranges::equal(stored_runs(other), row);
  });
  if (index == known) {
    runs_.insert(runs_.end(), row.begin(), row.end());
    offset_.push_back(std::ssize(runs_));
    if (!window_offset_.empty()) window_offset_.push_back(std::ssize(window_contents_));
  }
  index_.push_back(index);
}

void RowStore::add_windows(std::span<const std::int32_t> contents) {
  while (!contents.empty() && windows_.content(contents.back()).empty()) contents = contents.first(contents.size() - 1);
  if (are_many(count_runs(contents, windows_), std::ssize(contents))) return add_many(contents);
  const RowRuns row(contents, windows_.windows());
  joined_.assign(row.begin(), row.end());
  add(joined_);
}

void RowStore::add_many(std::span<const std::int32_t> contents) {
  check_room();
  const std::int64_t known = indices_.size();
  const std::int32_t index =
      indices_.find_or_add(base::hash_bytes(contents.data(), contents.size_bytes()),
                           [&](std::int32_t other) { return std::ranges::equal(stored_windows(other), contents); });
  if (index == known) {
    if (window_offset_.empty()) window_offset_.assign(static_cast<std::size_t>(known) + 1, 0);
    window_contents_.insert(window_contents_.end(), contents.begin(), contents.end());
    window_offset_.push_back(std::ssize(window_contents_));
    offset_.push_back(std::ssize(runs_));
  }
  index_.push_back(index);
}

void RowStore::move_to(BlockMaskAccess::State& state) {
  for (auto* values : {&offset_, &window_offset_}) values->shrink_to_fit();
  for (auto* values : {&index_, &window_contents_}) values->shrink_to_fit();
  runs_.shrink_to_fit();
  state.row_index = std::move(index_);
  state.run_offset = std::move(offset_);
  state.runs = std::move(runs_);
  state.window_offset = std::move(window_offset_);
  state.window_contents = std::move(window_contents_);
  state.windows = windows_.take();
  *this = {};
}

}  // namespace heddle::mask
