// The fields of a block mask, for the files of this folder.
#pragma once

#include "heddle/block_mask.h"

namespace heddle {

struct BlockMaskAccess {
  using State = BlockMask::State;
  static State& state(BlockMask& mask) { return mask.state_; }
  static const State& state(const BlockMask& mask) { return mask.state_; }
};

}  // namespace heddle
