// Rows of runs under construction. Equal rows are stored once, whichever score matrices they belong to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mask/access.h"
#include "mask/index_table.h"
#include "mask/window_store.h"

namespace heddle::mask {

class RowStore {
 public:
  /// A further row: sorted runs, not touching where of one kind. Throws unsupported when there are more different rows
  /// than an i32 counts.
  void add(std::span<const Run> row);
  /// A further row, of windows whose contents are in windows().
  void add_windows(std::span<const std::int32_t> contents);
  WindowStore& windows() { return windows_; }
  /// A further row, equal to row `row` (counted from the first one that was added).
  void repeat(std::int64_t row) { index_.push_back(index_[static_cast<std::size_t>(row)]); }
  std::int64_t rows() const { return std::ssize(index_); }
  /// Equal rows have equal indices, which count the different rows in the order of their first one.
  std::int32_t index(std::int64_t row) const { return index_[static_cast<std::size_t>(row)]; }

  /// Replaces the state's rows; nothing is left here.
  void move_to(BlockMaskAccess::State& state);

 private:
  std::span<const Run> stored_runs(std::int32_t index) const;
  std::span<const std::int32_t> stored_windows(std::int32_t index) const;
  void add_many(std::span<const std::int32_t> contents);
  void check_room() const;

  std::vector<std::int32_t> index_;  // by row: the stored one
  IndexTable indices_;               // of stored rows
  std::vector<std::int64_t> offset_{0};
  std::vector<Run> runs_;
  // Rows of many runs, as State has them.
  std::vector<std::int64_t> window_offset_;
  std::vector<std::int32_t> window_contents_;
  WindowStore windows_;
  std::vector<std::int32_t> cut_;  // the contents of the row at hand
  std::vector<Run> joined_;        // the runs of the row at hand
};

}  // namespace heddle::mask
