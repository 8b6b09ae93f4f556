#include "base/store.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/element.h"

namespace heddle::base {
namespace {

TEST(Store, WritesRowMajorNumbersToAnyStrides) {
  const std::vector<double> numbers = {1, 2, 3, 4, 5, 6};
  std::vector<float> memory(20, -1);
  store_row_major(numbers.data(), TensorView(memory.data() + 10, DType::f32, {2, 3}, {-7, 2}));
  EXPECT_EQ(memory, (std::vector<float>{-1, -1, -1, 4, -1, 5, -1, 6, -1, -1, 1, -1, 2, -1, 3, -1, -1, -1, -1, -1}));
}

TEST(Store, RoundsOnceToTheTensorsType) {
  const std::vector<float> numbers = {1.00390625F, 70000, -1e-9F};  // 1 + 2^-8: half a step of bf16
  const Tensor half = Tensor::empty(DType::f16, {3}), brain = Tensor::empty(DType::bf16, {3});
  store_row_major(numbers.data(), half);
  store_row_major(numbers.data(), brain);
  EXPECT_EQ(load_element(half.data(), DType::f16, 0), 1.00390625);
  EXPECT_EQ(load_element(half.data(), DType::f16, 1), INFINITY);
  EXPECT_EQ(load_element(half.data(), DType::f16, 2), 0);
  EXPECT_EQ(load_element(brain.data(), DType::bf16, 0), 1);
}

TEST(Store, LeavesNothingToDoWithoutElements) {
  store_row_major(static_cast<const double*>(nullptr), TensorView(nullptr, DType::f32, {3, 0}));
}

}  // namespace
}  // namespace heddle::base
