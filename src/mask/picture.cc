#include "mask/picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "heddle/error.h"
#include "mask/shape.h"

namespace heddle {
namespace mask {

Cell Picture::total() const {
  Cell sum;
  for (const Cell& cell : cells) {
    sum.full += cell.full;
    sum.partial += cell.partial;
    sum.blocks += cell.blocks;
  }
  return sum;
}

Picture picture_of(const BlockMask& mask, std::int64_t sequence, std::int64_t head, std::int64_t most) {
  const std::int64_t q_blocks = mask.q_blocks(sequence), kv_blocks = mask.kv_blocks(sequence);
  if (head < 0 || head >= mask.shape().heads) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the block mask has no head {}; it covers {}", head, mask.shape().heads));
  }
  Picture picture;
  picture.blocks_per_row = std::max<std::int64_t>(1, block_count(q_blocks, most));
  picture.blocks_per_column = std::max<std::int64_t>(1, block_count(kv_blocks, most));
  picture.rows = block_count(q_blocks, picture.blocks_per_row);
  picture.columns = block_count(kv_blocks, picture.blocks_per_column);
  picture.cells.resize(static_cast<std::size_t>(picture.rows * picture.columns));

  const std::int64_t width = picture.blocks_per_column;
  for (std::int64_t q = 0; q < q_blocks; ++q) {
    Cell* row = picture.cells.data() + q / picture.blocks_per_row * picture.columns;
    for (std::int64_t c = 0; c < picture.columns; ++c) row[c].blocks += std::min(width, kv_blocks - c * width);
    for (const Run& run : mask.row(sequence, head, q)) {
      for (std::int64_t begin = run.begin; begin < run.end;) {
        const std::int64_t c = begin / width, end = std::min<std::int64_t>(run.end, (c + 1) * width);
        (run.kind == RunKind::full ? row[c].full : row[c].partial) += end - begin;
        begin = end;
      }
    }
  }
  return picture;
}

}  // namespace mask

std::string BlockMask::text(std::int64_t sequence, std::int64_t head) const {
  const mask::Picture picture = mask::picture_of(*this, sequence, head, 128);
  std::string text;
  for (std::int64_t r = 0; r < picture.rows; ++r) {
    for (std::int64_t c = 0; c < picture.columns; ++c) {
      const mask::Cell& cell = picture.at(r, c);
      text += cell.full == cell.blocks ? '#' : cell.full + cell.partial == 0 ? '.' : '+';
    }
    text += '\n';
  }
  return text;
}

}  // namespace heddle
