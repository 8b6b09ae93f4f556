// One factor of a tensor of 8 bits.
#pragma once

#include "shared/storage.h"

namespace heddle::portable {

/// A head's factor; 1 where none was given.
__device__ __forceinline__ float descale_of(const shared::Descale& descale, int batch, int head) {
  return descale.factors == nullptr ? 1 : descale.factors[batch * descale.stride[0] + head * descale.stride[1]];
}

}  // namespace heddle::portable
