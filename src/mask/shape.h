// Shapes and block sizes that a block mask accepts, and how many blocks they make.
#pragma once

#include <string_view>

#include "heddle/block_mask.h"

namespace heddle::mask {

/// Throws invalid_argument, naming the sequence, for negative sizes and for positions or block counts that do not fit
/// i32.
void validate_shape(const MaskShape& shape);
/// Throws invalid_argument, naming what has them, if there are more sequences than can be listed. Call it before.
void check_sequence_count(std::string_view what, std::int64_t count);
/// True if each of `length` positions from `start` on fits i32; a length of 0 always does.
bool fits_i32(std::int64_t start, std::int64_t length);
void validate_block(BlockSize block);
/// Throws out_of_memory if these heads' rows and the rows before them take gigabytes to list.
void check_row_count(std::int64_t before, std::int64_t heads, std::int64_t rows_of_head);

inline std::int64_t block_count(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0 ? 1 : 0);
}

}  // namespace heddle::mask
