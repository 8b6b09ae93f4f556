// A score matrix coarsened to a grid of cells, for pictures: how many blocks of each kind stand behind a cell.
#pragma once

#include <cstdint>
#include <vector>

#include "heddle/block_mask.h"

namespace heddle::mask {

struct Cell {
  std::int64_t full = 0, partial = 0, blocks = 0;
  bool operator==(const Cell&) const = default;
};

/// At most `most` cells a side; each is blocks_per_row x blocks_per_column blocks, fewer at the ends.
struct Picture {
  std::int64_t rows = 0, columns = 0;
  std::int64_t blocks_per_row = 1, blocks_per_column = 1;
  std::vector<Cell> cells;  // [rows][columns]

  const Cell& at(std::int64_t row, std::int64_t column) const {
    return cells[static_cast<std::size_t>(row * columns + column)];
  }
  Cell total() const;
};

/// Throws invalid_argument for a sequence or head that is not there.
Picture picture_of(const BlockMask& mask, std::int64_t sequence, std::int64_t head, std::int64_t most);

}  // namespace heddle::mask
