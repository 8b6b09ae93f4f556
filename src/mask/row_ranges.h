// Sets of rows as ranges: ascending, disjoint, no two touch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "heddle/partition.h"

namespace heddle::mask {

/// Appends a range that begins at or after the end of the last one; joins them if they touch. Empty ones are left out.
void append(std::vector<RowRange>& ranges, RowRange next);
std::vector<RowRange> intersection(std::span<const RowRange> left, std::span<const RowRange> right);
std::vector<RowRange> united(std::span<const RowRange> left, std::span<const RowRange> right);
std::vector<RowRange> difference(std::span<const RowRange> from, std::span<const RowRange> what);
std::int64_t count(std::span<const RowRange> ranges);
std::uint64_t hash_of(std::uint64_t seed, std::span<const RowRange> ranges);

/// Which rows of keys some queries need: counts where ranges begin and end, so that a union costs its length once.
class RowUnion {
 public:
  /// Ranges are whole blocks of `block` rows, the last one cut at `length`.
  RowUnion(std::int64_t length, std::int64_t block);
  void add(std::int64_t first_block, std::int64_t end_block);
  std::vector<RowRange> ranges() const;

 private:
  std::int64_t length_, block_;
  std::vector<std::int32_t> steps_;
};

}  // namespace heddle::mask
