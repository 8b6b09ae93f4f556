#include "heddle/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/rows.h"
#include "expect_error.h"

// A refused allocation is part of the tests; ASan would end the program instead.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace heddle {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(Dims, HoldUpToEightValues) {
  Dims dims{1, 2, 3, 4, 5, 6, 7};
  dims.push_back(8);
  EXPECT_EQ(dims.size(), 8);
  EXPECT_EQ(dims[7], 8);
  EXPECT_EQ(to_string(dims), "[1, 2, 3, 4, 5, 6, 7, 8]");
  EXPECT_EQ(to_string(Dims{}), "[]");
  const std::string sentence = "a shape has 9 axes; at most 8 are accepted";
  expect_error([&] { dims.push_back(9); }, ErrorCode::invalid_argument, sentence);
  expect_error([] { Dims({1, 2, 3, 4, 5, 6, 7, 8, 9}); }, ErrorCode::invalid_argument, sentence);
  const std::vector<std::int64_t> nine(9, 1);
  expect_error([&] { Dims(std::span<const std::int64_t>(nine)); }, ErrorCode::invalid_argument, sentence);
  EXPECT_EQ(dims.size(), 8);
}

TEST(Dims, CompareByContentAndLength) {
  EXPECT_EQ((Dims{1, 2}), (Dims{1, 2}));
  EXPECT_NE((Dims{1, 2}), (Dims{1, 3}));
  EXPECT_NE((Dims{1, 0}), (Dims{1}));
  EXPECT_NE((Dims{1}), (Dims{1, 0}));
}

TEST(Shapes, CountOfElements) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 5}), 30);
  EXPECT_EQ(element_count({2, 0, 5}), 0);
  EXPECT_EQ(element_count({kMax}), kMax);
  EXPECT_EQ(element_count({kMax, kMax, 0}), 0);
  EXPECT_EQ(element_count({std::int64_t{1} << 31, std::int64_t{1} << 31}), std::int64_t{1} << 62);
  expect_error(
      [] {
        element_count({std::int64_t{1} << 31, std::int64_t{1} << 32});
      },
      ErrorCode::out_of_memory, "shape [2147483648, 4294967296] has more than 2^63 - 1 elements");
  // 2^64 wraps to 0.
  expect_error(
      [] {
        element_count({std::int64_t{1} << 32, std::int64_t{1} << 32});
      },
      ErrorCode::out_of_memory, "shape [4294967296, 4294967296] has more than 2^63 - 1 elements");
  expect_error([] { element_count({2, -3}); }, ErrorCode::invalid_argument, "shape [2, -3] has a negative extent");
  expect_error([] { element_count({0, -3}); }, ErrorCode::invalid_argument, "shape [0, -3] has a negative extent");
}

TEST(Shapes, ContiguousStrides) {
  EXPECT_EQ(contiguous_strides({}), Dims{});
  EXPECT_EQ(contiguous_strides({2, 3, 5}), (Dims{15, 5, 1}));
  EXPECT_EQ(contiguous_strides({2, 0, 5}), (Dims{5, 5, 1}));
  expect_error(
      [] {
        contiguous_strides({0, kMax, 2});
      },
      ErrorCode::out_of_memory, "shape [0, 9223372036854775807, 2] has more than 2^63 - 1 elements");
  expect_error([] { contiguous_strides({-1}); }, ErrorCode::invalid_argument, "shape [-1] has a negative extent");
}

class Views : public testing::Test {
 protected:
  std::vector<float> values_ = std::vector<float>(24);
  TensorView view_{values_.data(), DType::f32, {2, 3, 4}};

  void SetUp() override {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i);
  }
};

TEST_F(Views, PermuteReordersAxes) {
  const ConstTensorView turned = permute(ConstTensorView(view_), {2, 0, 1});
  EXPECT_EQ(turned.shape, (Dims{4, 2, 3}));
  EXPECT_EQ(turned.strides, (Dims{1, 12, 4}));
  EXPECT_EQ(get_element(turned, {3, 1, 2}), 23.0);
  EXPECT_EQ(get_element(turned, {1, 0, 2}), 9.0);
  EXPECT_FALSE(is_contiguous(turned));
  EXPECT_EQ(permute(view_, {0, 1, 2}).strides, view_.strides);
}

TEST_F(Views, PermuteRefusesWhatIsNoPermutation) {
  const auto message = [](const std::string& order) {
    return "order is " + order + "; accepted is each axis of a tensor of shape [2, 3, 4] exactly once";
  };
  for (const Dims& order : {Dims{0, 1}, Dims{0, 1, 1}, Dims{0, 1, 3}, Dims{0, -1, 2}, Dims{0, 1, 2, 3}, Dims{}}) {
    expect_error([&] { permute(view_, order); }, ErrorCode::invalid_argument, message(to_string(order)));
  }
  // 2^32 must not be taken for axis 0.
  const Dims huge{std::int64_t{1} << 32, 1, 2};
  expect_error([&] { permute(view_, huge); }, ErrorCode::invalid_argument, message(to_string(huge)));
}

TEST_F(Views, SliceTakesASubrange) {
  const TensorView middle = slice(view_, 1, 1, 3);
  EXPECT_EQ(middle.shape, (Dims{2, 2, 4}));
  EXPECT_EQ(middle.data, values_.data() + 4);
  EXPECT_EQ(get_element(middle, {1, 1, 3}), 23.0);
  EXPECT_EQ(slice(ConstTensorView(view_), 2, 0, 4).shape, view_.shape);
  // An empty slice at the end does not point past the memory.
  EXPECT_EQ(slice(view_, 0, 2, 2).data, view_.data);
  EXPECT_EQ(slice(view_, 0, 2, 2).count(), 0);
}

TEST_F(Views, SliceRefusesWhatIsOutside) {
  const auto inside = [&](std::int64_t begin, std::int64_t end, const std::string& range) {
    expect_error([&] { slice(view_, 2, begin, end); }, ErrorCode::invalid_argument,
                 "slice " + range + " is not inside axis 2 of a tensor of shape [2, 3, 4]");
  };
  inside(-1, 2, "[-1, 2)");
  inside(3, 2, "[3, 2)");
  inside(0, 5, "[0, 5)");
  inside(5, 5, "[5, 5)");
  expect_error([&] { slice(view_, 3, 0, 1); }, ErrorCode::invalid_argument,
               "axis is 3; a tensor of shape [2, 3, 4] has axes 0 to 2");
  expect_error([&] { slice(view_, -1, 0, 1); }, ErrorCode::invalid_argument,
               "axis is -1; a tensor of shape [2, 3, 4] has axes 0 to 2");
  expect_error([&] { slice(TensorView(values_.data(), DType::f32, Dims{}), 0, 0, 1); }, ErrorCode::invalid_argument,
               "axis is 0; a tensor of rank 0 has no axes");
}

TEST_F(Views, ContiguityIgnoresAxesOfOne) {
  EXPECT_TRUE(is_contiguous(view_));
  EXPECT_TRUE(is_contiguous(slice(view_, 0, 1, 2)));
  EXPECT_FALSE(is_contiguous(slice(view_, 1, 0, 2)));
  EXPECT_TRUE(is_contiguous(TensorView(values_.data(), DType::f32, {1, 3, 1, 4}, {-7, 4, 99, 1})));
  EXPECT_FALSE(is_contiguous(TensorView(values_.data(), DType::f32, {4}, {-1})));
  EXPECT_FALSE(is_contiguous(TensorView(values_.data(), DType::f32, {4}, {0})));
  EXPECT_TRUE(is_contiguous(TensorView(nullptr, DType::f32, {4, 0}, {3, 3})));
  EXPECT_TRUE(is_contiguous(TensorView(values_.data(), DType::f32, Dims{})));
}

TEST_F(Views, ElementsOfAnyStride) {
  const ConstTensorView backwards(values_.data() + 23, DType::f32, {24}, {-1});
  EXPECT_EQ(get_element(backwards, {0}), 23.0);
  EXPECT_EQ(get_element(backwards, {23}), 0.0);
  const ConstTensorView broadcast(values_.data() + 5, DType::f32, {7}, {0});
  EXPECT_EQ(get_element(broadcast, {6}), 5.0);
  EXPECT_EQ(get_element(ConstTensorView(values_.data() + 2, DType::f32, Dims{}), {}), 2.0);
}

TEST(Tensors, OwnAlignedMemoryAndShareIt) {
  Tensor tensor = Tensor::zeros(DType::i32, {3, 5});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0u);
  EXPECT_EQ(tensor.count(), 15);
  const Tensor other = tensor;
  static_cast<std::int32_t*>(tensor.data())[14] = 7;
  tensor = Tensor();
  EXPECT_EQ(get_element(other, {2, 4}), 7.0);
  EXPECT_EQ(get_element(other, {2, 3}), 0.0);
  EXPECT_EQ(tensor.count(), 0);
  EXPECT_EQ(tensor.shape(), Dims{0});
}

TEST(Tensors, EmptyShapesHaveAPointer) {
  const Tensor tensor = Tensor::zeros(DType::f64, {4, 0});
  EXPECT_NE(tensor.data(), nullptr);
  EXPECT_EQ(tensor.count(), 0);
}

TEST(Tensors, AdoptKeepsTheOwner) {
  auto owner = std::make_shared<std::vector<double>>(6, 1.25);
  const std::weak_ptr<std::vector<double>> watch = owner;
  Tensor tensor = Tensor::adopt(TensorView(owner->data(), DType::f64, {3, 2}), owner);
  owner.reset();
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(get_element(tensor, {2, 1}), 1.25);
  tensor = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(Tensors, ImpossibleSizesAreRefused) {
  expect_error(
      [] {
        Tensor::empty(DType::f32, {std::int64_t{1} << 40, std::int64_t{1} << 40});
      },
      ErrorCode::out_of_memory, "shape [1099511627776, 1099511627776] has more than 2^63 - 1 elements");
  // The elements can be counted, their bytes not.
  expect_error([] { Tensor::empty(DType::f64, {std::int64_t{1} << 61}); }, ErrorCode::out_of_memory,
               "cannot allocate a f64 tensor of shape [2305843009213693952]");
  expect_error([] { Tensor::zeros(DType::u8, {std::int64_t{1} << 60}); }, ErrorCode::out_of_memory,
               "cannot allocate a u8 tensor of shape [1152921504606846976]");
  expect_error([] { Tensor::empty(DType::f32, {-1}); }, ErrorCode::invalid_argument,
               "shape [-1] has a negative extent");
}

TEST(Rows, VisitEveryElementInRowMajorOrder) {
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 2000; ++round) {
    Dims shape;
    Dims strides;
    for (std::int64_t rank = below(6); rank > 0; --rank) {
      shape.push_back(below(5) == 0 ? below(2) : 1 + below(4));
      strides.push_back(below(25) - 12);
    }
    // Half of the time real layouts, of which axes can be joined.
    if (below(2) == 0) strides = contiguous_strides(shape);
    std::vector<std::int64_t> expected;
    for (std::int64_t flat = 0; flat < element_count(shape); ++flat) {
      std::int64_t rest = flat;
      std::int64_t offset = 0;
      for (int axis = shape.size() - 1; axis >= 0; --axis) {
        offset += rest % shape[axis] * strides[axis];
        rest /= shape[axis];
      }
      expected.push_back(offset);
    }
    std::vector<std::int64_t> visited;
    const base::Walk walk = base::coalesce(shape, strides);
    base::for_each_row(walk, [&](std::int64_t offset) {
      for (std::int64_t i = 0; i < walk.row_length(); ++i) visited.push_back(offset + i * walk.row_stride());
    });
    ASSERT_EQ(visited, expected) << to_string(shape) << " " << to_string(strides);
  }
}

TEST(Rows, JoinWhatOneStrideCovers) {
  EXPECT_EQ(base::coalesce({2, 3, 4}, {12, 4, 1}).shape, Dims{24});
  EXPECT_EQ(base::coalesce({2, 3, 4}, {20, 4, 1}).shape, (Dims{2, 12}));
  EXPECT_EQ(base::coalesce({2, 1, 4}, {8, 77, 2}).shape, Dims{8});
  EXPECT_EQ(base::coalesce({1, 1}, {5, 5}).shape, Dims{1});
}

}  // namespace
}  // namespace heddle
