// How far rounding moves a number of a type.
#pragma once

#include "heddle/dtype.h"

namespace heddle::test {

/// Half of the distance from 1 to the next larger number.
constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f32:
      return 0x1p-24;
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::e4m3:
      return 0x1p-4;
    default:
      return 0x1p-3;
  }
}

}  // namespace heddle::test
