// Copies with conversion: every pair of types, against a plain per-element statement in long double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/element.h"
#include "expect_error.h"
#include "heddle/tensor.h"

namespace heddle {
namespace {

using Bytes = std::vector<unsigned char>;

Bytes bytes_of(const Tensor& tensor) {
  const auto* data = static_cast<const unsigned char*>(tensor.data());
  return Bytes(data, data + tensor.count() * size_of(tensor.dtype()));
}

template <class T>
Tensor tensor_of(DType dtype, const std::vector<T>& values) {
  Tensor tensor = Tensor::empty(dtype, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.data(), values.data(), values.size() * sizeof(T));
  return tensor;
}

/// The exact value of one element: x87's long double holds all 64 bits of every integer type.
long double exact(const Tensor& tensor, std::int64_t i) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  if (tensor.dtype() == DType::i64) return base::load_raw<std::int64_t>(tensor.data(), i);
  if (tensor.dtype() == DType::u64) return base::load_raw<std::uint64_t>(tensor.data(), i);
  return base::load_element(tensor.data(), tensor.dtype(), i);
}

struct IntegerRange {
  long double lowest;
  long double highest;
};

IntegerRange integer_range(DType dtype) {
  const int bits = static_cast<int>(size_of(dtype)) * 8;
  const bool is_signed = dtype == DType::i64 || dtype == DType::i32 || dtype == DType::i16 || dtype == DType::i8;
  if (is_signed) return {-std::ldexp(1.0L, bits - 1), std::ldexp(1.0L, bits - 1) - 1};
  return {0, std::ldexp(1.0L, bits) - 1};
}

/// True when `got` is a correct rounding of `x` to the grid of the floating type: no neighbour of the same type is
/// nearer.
bool is_nearest(DType dtype, long double x, double got) {
  if (std::isnan(x) || std::isnan(got)) return std::isnan(got) && (std::isnan(x) || dtype == DType::e4m3);
  if (std::isinf(got)) return std::fabs(x) > 200;
  std::uint64_t stored = 0;
  base::store_element(&stored, dtype, 0, got);
  for (const std::uint64_t neighbour : {stored - 1, stored + 1}) {
    const double other = base::load_element(&neighbour, dtype, 0);
    if (std::isfinite(other) && std::fabs(other - x) < std::fabs(got - x)) return false;
  }
  return true;
}

Tensor random_values(DType dtype, std::int64_t count, std::mt19937_64& random) {
  Tensor tensor = Tensor::empty(dtype, {count});
  auto* data = static_cast<unsigned char*>(tensor.data());
  for (std::int64_t i = 0; i < count * size_of(dtype); ++i) data[i] = static_cast<unsigned char>(random());
  // Random bits of wide types are huge numbers only; moderate ones matter more.
  for (std::int64_t i = 0; i < count; i += 2) {
    const auto exponent = static_cast<int>(random() % 70) - 6;
    base::store_element(data, dtype, i,
                        std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())), exponent - 63));
  }
  if (dtype == DType::boolean) {
    for (std::int64_t i = 0; i < count; ++i) data[i] &= 1;
  }
  return tensor;
}

TEST(Copy, EveryPairOfTypes) {
  std::mt19937_64 random(11);
  constexpr std::int64_t kCount = 1500;
  for (int from = 0; from < kDTypeCount; ++from) {
    const Tensor source = random_values(static_cast<DType>(from), kCount, random);
    for (int to = 0; to < kDTypeCount; ++to) {
      const auto dtype = static_cast<DType>(to);
      const Tensor result = source.to(dtype);
      ASSERT_EQ(result.dtype(), dtype);
      ASSERT_EQ(result.shape(), source.shape());
      if (from == to) {
        ASSERT_EQ(bytes_of(result), bytes_of(source)) << name(dtype);
        continue;
      }
      for (std::int64_t i = 0; i < kCount; ++i) {
        const long double x = exact(source, i);
        const long double got = exact(result, i);
        const auto what = [&] { return std::string(name(source.dtype())) + " to " + std::string(name(dtype)); };
        if (dtype == DType::boolean) {
          ASSERT_EQ(base::load_raw<std::uint8_t>(result.data(), i), x != 0 ? 1 : 0) << what() << " " << x;
        } else if (is_floating(dtype)) {
          ASSERT_TRUE(is_nearest(dtype, x, static_cast<double>(got))) << what() << " " << x << " gave " << got;
        } else {
          const IntegerRange range = integer_range(dtype);
          const long double whole = std::isnan(x) ? 0 : std::trunc(x);
          ASSERT_EQ(got, std::min(std::max(whole, range.lowest), range.highest)) << what() << " " << x;
        }
      }
    }
  }
}

TEST(Copy, SixtyFourBitIntegersAreRoundedOnce) {
  // 2^54 + 2^30 + 1 lies above the midpoint of two floats; through double, which drops the 1, it would be on it.
  const std::int64_t above = (std::int64_t{1} << 54) + (std::int64_t{1} << 30) + 1;
  const Tensor source = tensor_of<std::int64_t>(DType::i64, {above, -above, above - 1, above - 2});
  const Tensor floats = source.to(DType::f32);
  const float* got = static_cast<const float*>(floats.data());
  EXPECT_EQ(got[0], 0x1p54f + 0x1p31f);
  EXPECT_EQ(got[1], -0x1p54f - 0x1p31f);
  EXPECT_EQ(got[2], 0x1p54f);
  EXPECT_EQ(got[3], 0x1p54f);
}

TEST(Copy, SixtyFourBitIntegersKeepEveryBit) {
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const Tensor source = tensor_of<std::int64_t>(DType::i64, {kMax, kMax - 1, -1, kMin, 0});
  const Tensor unsigned_copy = source.to(DType::u64);
  const auto* up = static_cast<const std::uint64_t*>(unsigned_copy.data());
  EXPECT_EQ(std::vector<std::uint64_t>(up, up + 5),
            (std::vector<std::uint64_t>{0x7fffffffffffffff, 0x7ffffffffffffffe, 0, 0, 0}));
  const Tensor back = tensor_of<std::uint64_t>(DType::u64, {~std::uint64_t{0}, 0x8000000000000000, 5}).to(DType::i64);
  const auto* down = static_cast<const std::int64_t*>(back.data());
  EXPECT_EQ(std::vector<std::int64_t>(down, down + 3), (std::vector<std::int64_t>{kMax, kMax, 5}));
}

TEST(Copy, NanPayloadsOfTheSameTypeAreKept) {
  const Tensor source = tensor_of<std::uint32_t>(DType::f32, {0x7f800001, 0xffc12345});
  EXPECT_EQ(bytes_of(source.to(DType::f32)), bytes_of(source));
}

TEST(Copy, NanAndInfinity) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor source = tensor_of<double>(DType::f64, {std::nan(""), infinity, -infinity, 1e300});
  const Tensor f32 = source.to(DType::f32);
  EXPECT_TRUE(std::isnan(get_element(f32, {0})));
  EXPECT_EQ(get_element(f32, {1}), infinity);
  EXPECT_EQ(get_element(f32, {2}), -infinity);
  EXPECT_EQ(get_element(f32, {3}), infinity);
  EXPECT_TRUE(std::isnan(get_element(source.to(DType::e4m3), {1})));
  EXPECT_EQ(get_element(source.to(DType::i32), {0}), 0);
  EXPECT_EQ(get_element(source.to(DType::boolean), {0}), 1);
}

TEST(Copy, AnyStridesGiveRowMajorOrder) {
  std::mt19937_64 random(3);
  for (const DType from : {DType::i64, DType::f32, DType::bf16, DType::u8}) {
    for (const DType to : {from, DType::f64, DType::u64}) {
      // Longer than the conversion's chunk in one axis.
      const Tensor memory = random_values(from, 3 * 1201 * 5, random);
      const auto* last = static_cast<const std::byte*>(memory.data()) + (memory.count() - 1) * size_of(from);
      const std::vector<ConstTensorView> views{
          {memory.data(), from, {3, 1201, 5}},         {memory.data(), from, {5, 3, 1201}, {1, 6005, 5}},
          {last, from, {3, 1201, 5}, {-6005, -5, -1}}, {memory.data(), from, {4, 1201, 2}, {0, 15, 5}},
          {memory.data(), from, {1201}, {7}},          {memory.data(), from, Dims{}, Dims{}},
          {memory.data(), from, {7, 0}, {1, 1}},
      };
      for (const ConstTensorView& view : views) {
        const Tensor result = copy(view, to);
        ASSERT_EQ(result.shape(), view.shape);
        ASSERT_TRUE(is_contiguous(result));
        for (std::int64_t flat = 0; flat < view.count(); ++flat) {
          Dims index = view.shape;
          std::int64_t rest = flat;
          for (int axis = index.size() - 1; axis >= 0; --axis) {
            index[axis] = rest % view.shape[axis];
            rest /= view.shape[axis];
          }
          std::int64_t offset = 0;
          for (int axis = 0; axis < index.size(); ++axis) offset += index[axis] * view.strides[axis];
          Tensor one = Tensor::empty(from, {1});
          std::memcpy(one.data(), static_cast<const std::byte*>(view.data) + offset * size_of(from),
                      static_cast<std::size_t>(size_of(from)));
          const Bytes wanted = bytes_of(one.to(to));
          const auto* got = static_cast<const unsigned char*>(result.data()) + flat * size_of(to);
          ASSERT_EQ(Bytes(got, got + size_of(to)), wanted) << to_string(view.shape) << " at " << flat;
        }
      }
    }
  }
}

TEST(Copy, OfDeviceMemoryIsRefused) {
  int nothing = 0;
  const TensorView view(&nothing, DType::i32, {1}, Device{DeviceKind::cuda, 0});
  expect_error([&] { copy(view, DType::f32); }, ErrorCode::unsupported,
               "copy of a tensor of shape [1] on a GPU; only CPU memory is accepted");
}

}  // namespace
}  // namespace heddle
