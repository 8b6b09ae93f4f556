// The precision of floating types.
#pragma once

#include "heddle/dtype.h"

namespace heddle::base {

/// The smallest number above 0.
constexpr double smallest_subnormal(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-1074;
    case DType::f16:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-133;
    case DType::e4m3:
      return 0x1p-9;
    case DType::e5m2:
      return 0x1p-16;
    default:
      return 0x1p-149;
  }
}

}  // namespace heddle::base
