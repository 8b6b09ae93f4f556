// The columns of rows of many runs: tiles of 128 rows and 128 columns are turned, each different one once. So they cost
// the windows of the rows, and no work for each run.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "mask/access.h"
#include "mask/index_table.h"
#include "mask/row_store.h"

namespace heddle::mask {

class WindowColumns {
 public:
  /// Row r of the matrix is stored row stored[row_of[r]] of the state. Both stay as long as this.
  WindowColumns(const BlockMaskAccess::State& state, std::span<const std::int32_t> stored,
                std::span<const std::int32_t> row_of, std::int64_t columns);

  void add_to(RowStore& to);

 private:
  static constexpr std::size_t kSide = RunWindows::kColumns;
  /// Contents of windows, one below the other (rows) or side by side (columns).
  using Tile = std::array<std::int32_t, kSide>;

  std::int32_t content(std::int32_t row, std::size_t window) const;
  std::int32_t tile_of(std::size_t band, std::size_t window, RowStore& to);
  Tile turned(const Tile& rows, RowStore& to) const;

  std::span<const std::int32_t> row_of_;
  std::int64_t columns_;
  WindowStore windows_;
  std::int32_t nothing_;           // content of a window without runs
  std::vector<std::int32_t> cut_;  // contents of the rows that the state keeps as runs
  std::vector<std::span<const std::int32_t>> rows_;
  IndexTable tiles_;
  std::vector<Tile> upright_, turned_;  // by tile: contents in windows_, and in the windows of the store
};

}  // namespace heddle::mask
