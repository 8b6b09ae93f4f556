// Rows of runs under construction. Equal rows are stored once, whichever score matrices they belong to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mask/access.h"

namespace heddle::mask {

class RowStore {
 public:
  /// A further row: sorted runs, not touching where of one kind. Throws unsupported when there are more different rows
  /// than an i32 counts.
  void add(std::span<const Run> row);
  /// A further row, equal to row `row` (counted from the first one that was added).
  void repeat(std::int64_t row) { index_.push_back(index_[static_cast<std::size_t>(row)]); }
  std::int64_t rows() const { return std::ssize(index_); }
  /// Equal rows have equal indices, which count the different rows in the order of their first one.
  std::int32_t index(std::int64_t row) const { return index_[static_cast<std::size_t>(row)]; }

  /// Replaces the state's rows; nothing is left here.
  void move_to(BlockMaskAccess::State& state);

 private:
  std::span<const Run> stored(std::int32_t index) const;
  std::size_t slot_of(std::span<const Run> row, std::uint64_t hash) const;
  void grow();

  std::vector<std::int32_t> index_;  // by row: the stored one
  std::vector<std::int64_t> offset_{0};
  std::vector<Run> runs_;
  std::vector<std::uint64_t> hashes_;  // of stored rows
  std::vector<std::int32_t> slots_;    // stored rows by hash, at most half full; -1: free
};

}  // namespace heddle::mask
