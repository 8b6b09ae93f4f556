#include "mask/row_ranges.h"

#include <algorithm>

#include "mask/shape.h"

namespace heddle::mask {

void append(std::vector<RowRange>& ranges, RowRange next) {
  if (next.begin >= next.end) return;
  if (!ranges.empty() && ranges.back().end == next.begin) {
    ranges.back().end = next.end;
  } else {
    ranges.push_back(next);
  }
}

std::vector<RowRange> intersection(std::span<const RowRange> left, std::span<const RowRange> right) {
  std::vector<RowRange> both;
  for (std::size_t l = 0, r = 0; l < left.size() && r < right.size();) {
    append(both, {std::max(left[l].begin, right[r].begin), std::min(left[l].end, right[r].end)});
    (left[l].end < right[r].end ? l : r)++;
  }
  return both;
}

std::int64_t count(std::span<const RowRange> ranges) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.end - range.begin;
  return rows;
}

RowUnion::RowUnion(std::int64_t length, std::int64_t block)
    : length_(length), block_(block), steps_(static_cast<std::size_t>(block_count(length, block) + 1)) {}

void RowUnion::add(std::int64_t first_block, std::int64_t end_block) {
  ++steps_[static_cast<std::size_t>(first_block)];
  --steps_[static_cast<std::size_t>(end_block)];
}

std::vector<RowRange> RowUnion::ranges() const {
  std::vector<RowRange> found;
  std::int64_t open = 0;
  for (std::int64_t block = 0; block + 1 < std::ssize(steps_); ++block) {
    open += steps_[static_cast<std::size_t>(block)];
    if (open > 0) append(found, {block * block_, std::min(length_, (block + 1) * block_)});
  }
  return found;
}

}  // namespace heddle::mask
