// A tensor map as it describes a tensor of 16 bits.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "backend/cuda/driver/fake_driver.h"
#include "heddle/tensor.h"

namespace heddle::cuda {

/// Strides of axes with one element are the library's to choose: that the fake took them is enough.
inline void expect_map(const FakeTensorMap& map, const ConstTensorView& view, int box_rows) {
  EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(view.data));
  ASSERT_EQ(map.rank, 4);
  for (int axis = 0; axis < 4; ++axis) {
    EXPECT_EQ(map.extents[axis], view.shape[3 - axis]) << axis;
    EXPECT_EQ(map.element_strides[axis], 1) << axis;
    EXPECT_EQ(map.box[axis], axis == 0 ? 64 : axis == 1 ? box_rows : 1) << axis;
    if (axis > 0 && view.shape[3 - axis] > 1) {
      EXPECT_EQ(map.strides[axis - 1], 2 * view.strides[3 - axis]) << axis;
    }
  }
  const auto type = view.dtype == DType::f16 ? CUtensorMapDataType::float16 : CUtensorMapDataType::bfloat16;
  EXPECT_EQ(map.type, static_cast<int>(type));
  EXPECT_EQ(map.interleave, static_cast<int>(CUtensorMapInterleave::none));
  EXPECT_EQ(map.swizzle, static_cast<int>(CUtensorMapSwizzle::bytes128));
  EXPECT_EQ(map.fill, static_cast<int>(CUtensorMapFloatOOBfill::zeros));
}

}  // namespace heddle::cuda
