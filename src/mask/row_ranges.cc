#include "mask/row_ranges.h"

#include <algorithm>

#include "base/hash.h"
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

std::vector<RowRange> united(std::span<const RowRange> left, std::span<const RowRange> right) {
  std::vector<RowRange> all;
  for (std::size_t l = 0, r = 0; l < left.size() || r < right.size();) {
    const bool from_left = r == right.size() || (l < left.size() && left[l].begin <= right[r].begin);
    const RowRange next = from_left ? left[l++] : right[r++];
    if (!all.empty() && next.begin <= all.back().end) {
      all.back().end = std::max(all.back().end, next.end);
    } else {
      all.push_back(next);
    }
  }
  return all;
}

std::vector<RowRange> difference(std::span<const RowRange> from, std::span<const RowRange> what) {
  std::vector<RowRange> left;
  std::size_t next = 0;
  for (const RowRange& range : from) {
    std::int64_t begin = range.begin;
    while (next < what.size() && what[next].end <= begin) ++next;
    for (std::size_t i = next; i < what.size() && what[i].begin < range.end; ++i) {
      append(left, {begin, std::min(what[i].begin, range.end)});
      begin = std::max(begin, what[i].end);
    }
    append(left, {begin, range.end});
  }
  return left;
}

std::int64_t count(std::span<const RowRange> ranges) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.end - range.begin;
  return rows;
}

std::uint64_t hash_of(std::uint64_t seed, std::span<const RowRange> ranges) {
  std::uint64_t hash = base::hash_combine(seed, ranges.size());
  for (const RowRange& range : ranges) {
    hash = base::hash_combine(hash, static_cast<std::uint64_t>(range.begin));
    hash = base::hash_combine(hash, static_cast<std::uint64_t>(range.end));
  }
  return hash;
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
