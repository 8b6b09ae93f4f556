// The two matrix products of a forward tile, as the instructions of its shapes: their operand lists are as long as a
// tile is wide, so they are written for the tile at hand.
#pragma once

#include <string>

#include "shared/forward_sm90_config.h"

namespace heddle::cuda::emit {

/// In namespace heddle:
///   qk_product(float (&d)[kv_block / 2], unsigned long long a, unsigned long long b, int accumulate)
/// d (+)= a b, 64 x kv_block x 16: both operands in shared memory, columns contiguous in memory (K-major);
///   pv_product(float (&d)[v_columns / 2], const unsigned* a, unsigned long long b, int accumulate)
/// d (+)= a b, 64 x v_columns x 16: a in four registers, b in shared memory with its rows contiguous (MN-major).
/// In 8 bits 32 takes the place of 16, and b is K-major in both.
std::string wgmma_text(const shared::ForwardSm90Config& config);

}  // namespace heddle::cuda::emit
