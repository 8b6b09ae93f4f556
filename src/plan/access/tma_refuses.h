// Which tensors TMA takes where they are.
#pragma once

#include <cstdint>
#include <string>

#include "heddle/tensor.h"

namespace heddle::plan {

inline constexpr std::int64_t kTmaBytes = 16;  // divide addresses and strides of what it takes

/// Why TMA does not take the tensor, by its strides and its address (null: as far aligned as may be): "its strides are
/// ..."; empty where it does. Strides of axes with one element say nothing. The last stride is not looked at.
std::string tma_refuses(const ConstTensorView& view);

}  // namespace heddle::plan
