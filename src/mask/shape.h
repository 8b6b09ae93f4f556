// What shapes and block sizes a block mask takes, and how many blocks they make.
#pragma once

#include "heddle/block_mask.h"

namespace heddle::mask {

/// Throws invalid_argument, naming the sequence, for negative sizes and for positions or block counts that do not fit
/// i32.
void validate_shape(const MaskShape& shape);
void validate_block(BlockSize block);

inline std::int64_t block_count(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0 ? 1 : 0);
}

}  // namespace heddle::mask
