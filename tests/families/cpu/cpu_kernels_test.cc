// The building blocks of the CPU kernels against plain loops, on every SIMD target: the micro-kernel and the packing of
// keys and values. All inputs are small integers, so every order of additions gives the same sum and equality is exact.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/element.h"
#include "families/cpu/target_data.h"
#include "tile_evaluator/on_every_target.h"

namespace heddle::cpu {
namespace {

using plan::kPanel;

/// 64-byte aligned, filled with NaN.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count)
      : data_(static_cast<T*>(std::aligned_alloc(
                  64, static_cast<std::size_t>(plan::round_up(
                          std::max<std::int64_t>(count, 1) * static_cast<std::int64_t>(sizeof(T)), 64)))),
              &std::free),
        count_(count) {
    std::fill(data_.get(), data_.get() + count, std::numeric_limits<T>::quiet_NaN());
  }
  T* data() { return data_.get(); }
  T& operator[](std::int64_t i) { return data_.get()[i]; }
  std::int64_t size() const { return count_; }

 private:
  std::unique_ptr<T, decltype(&std::free)> data_;
  std::int64_t count_;
};

int small_integer(std::int64_t i) { return static_cast<int>(i * 7919 % 17) - 8; }

template <class T>
class CpuKernels : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuKernels, Reals);

TYPED_TEST(CpuKernels, MultiplyIsThePlainProductAtEverySize) {
  using T = TypeParam;
  on_every_target([] {
    for (const std::int64_t rows : {1, 2, 3, 5, 6, 7, 9, 13, 16, 17}) {
      for (const std::int64_t columns : {16, 32, 48, 64}) {
        for (const std::int64_t depth : {0, 1, 2, 5, 67}) {
          for (const bool scaled : {false, true}) {
            const std::int64_t a_stride = depth + 3, c_stride = 80;
            Buffer<T> a(rows * a_stride), b(depth * kPanel), c(rows * c_stride), scales(rows), factors(rows);
            for (std::int64_t i = 0; i < rows; ++i) {
              for (std::int64_t k = 0; k < depth; ++k) a[i * a_stride + k] = static_cast<T>(small_integer(i * 31 + k));
              scales[i] = static_cast<T>(small_integer(i));
              factors[i] = static_cast<T>(small_integer(i * 3 + 1));
              if (!scaled) continue;
              for (std::int64_t j = 0; j < columns; ++j) c[i * c_stride + j] = static_cast<T>(small_integer(i + j));
            }
            for (std::int64_t k = 0; k < depth; ++k) {
              for (std::int64_t j = 0; j < columns; ++j) b[k * kPanel + j] = static_cast<T>(small_integer(k * 5 + j));
            }
            multiply(Product<T>{a.data(), a_stride, b.data(), c.data(), c_stride, rows, columns, depth,
                                scaled ? scales.data() : nullptr, depth % 2 == 1 ? factors.data() : nullptr});
            for (std::int64_t i = 0; i < rows; ++i) {
              for (std::int64_t j = 0; j < c_stride; ++j) {
                if (j >= columns) {
                  ASSERT_TRUE(std::isnan(c[i * c_stride + j])) << "wrote outside at " << i << ", " << j;
                  continue;
                }
                int sum = scaled ? small_integer(i) * small_integer(i + j) : 0;
                for (std::int64_t k = 0; k < depth; ++k) sum += small_integer(i * 31 + k) * small_integer(k * 5 + j);
                if (depth % 2 == 1) sum *= small_integer(i * 3 + 1);
                ASSERT_EQ(c[i * c_stride + j], static_cast<T>(sum))
                    << rows << " x " << columns << " x " << depth << (scaled ? " scaled" : "") << " at " << i << ", "
                    << j;
              }
            }
          }
        }
      }
    }
  });
}

/// A [rows][dim] tensor of small integers with a row stride, against the end of its allocation.
template <class Storage>
std::vector<Storage> integers(std::int64_t rows, std::int64_t dim, std::int64_t stride) {
  std::vector<Storage> data(static_cast<std::size_t>(rows == 0 ? 0 : (rows - 1) * stride + dim));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t d = 0; d < dim; ++d) {
      data[static_cast<std::size_t>(r * stride + d)] = base::encode<Storage>(small_integer(r * 13 + d));
    }
  }
  return data;
}

template <class T, class Storage>
void expect_packed_keys(DType dtype) {
  for (const std::int64_t keys : {1, 63, 64, 65, 200}) {
    for (const std::int64_t dim : {1, 3, 4, 64, 67, 130}) {
      const std::int64_t stride = dim + 5;
      const std::vector<Storage> data = integers<Storage>(keys, dim, stride);
      Buffer<T> panels(plan::round_up(keys, kPanel) * dim), staging(kPanel * kPanel);
      // In two parts, as two tasks do it.
      const std::int64_t middle = std::min(keys, kPanel);
      for (const auto& [begin, end] : {std::pair{middle, keys}, std::pair{std::int64_t{0}, middle}}) {
        pack(PackKeys<T>{{data.data(), dtype, stride}, begin, end, dim, panels.data(), staging.data()});
      }
      for (std::int64_t key = 0; key < plan::round_up(keys, kPanel); ++key) {
        for (std::int64_t d = 0; d < dim; ++d) {
          const T found = panels[(key / kPanel * dim + d) * kPanel + key % kPanel];
          if (key >= plan::round_up(keys, kColumnUnit)) {
            ASSERT_TRUE(std::isnan(found)) << "columns that no product reads were written";
            continue;
          }
          ASSERT_EQ(found, key < keys ? static_cast<T>(small_integer(key * 13 + d)) : T(0))
              << name(dtype) << " key " << key << " of " << keys << ", dimension " << d << " of " << dim;
        }
      }
    }
  }
}

template <class T, class Storage>
void expect_packed_values(DType dtype) {
  for (const std::int64_t keys : {1, 64, 65, 200}) {
    for (const std::int64_t dim : {1, 3, 64, 67, 130}) {
      const std::int64_t stride = dim + 5, width = plan::round_up(dim, kPanel);
      const std::vector<Storage> data = integers<Storage>(keys, dim, stride);
      Buffer<T> panels(width * keys);
      std::vector<std::uint8_t> flags(static_cast<std::size_t>(plan::round_up(keys, kPanel) / kPanel), 7);
      const std::int64_t middle = std::min(keys, kPanel);
      for (const auto& [begin, end] : {std::pair{middle, keys}, std::pair{std::int64_t{0}, middle}}) {
        pack(PackValues<T>{{data.data(), dtype, stride}, begin, end, dim, keys, panels.data(), flags.data()});
      }
      for (std::int64_t key = 0; key < keys; ++key) {
        for (std::int64_t d = 0; d < width; ++d) {
          const T expected = d < dim ? static_cast<T>(small_integer(key * 13 + d)) : T(0);
          ASSERT_EQ(panels[(d / kPanel * keys + key) * kPanel + d % kPanel], expected)
              << name(dtype) << " key " << key << " of " << keys << ", dimension " << d << " of " << dim;
        }
      }
      EXPECT_THAT(flags, testing::Each(0));
    }
  }
}

TYPED_TEST(CpuKernels, PackedKeysAreColumnsAndPackedValuesRowsOfEveryStorage) {
  on_every_target([] {
    expect_packed_keys<TypeParam, double>(DType::f64);
    expect_packed_keys<TypeParam, float>(DType::f32);
    expect_packed_keys<TypeParam, f16>(DType::f16);
    expect_packed_keys<TypeParam, bf16>(DType::bf16);
    expect_packed_keys<TypeParam, e4m3>(DType::e4m3);
    expect_packed_keys<TypeParam, e5m2>(DType::e5m2);
    expect_packed_values<TypeParam, double>(DType::f64);
    expect_packed_values<TypeParam, float>(DType::f32);
    expect_packed_values<TypeParam, f16>(DType::f16);
    expect_packed_values<TypeParam, bf16>(DType::bf16);
    expect_packed_values<TypeParam, e4m3>(DType::e4m3);
    expect_packed_values<TypeParam, e5m2>(DType::e5m2);
  });
}

TYPED_TEST(CpuKernels, OneNanOrInfinityFlagsItsPanelOfValues) {
  using T = TypeParam;
  constexpr std::int64_t kKeys = 200, kDim = 67;
  on_every_target([] {
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity()}) {
      for (const std::int64_t key : {0, 63, 64, 130, 199}) {
        for (const std::int64_t d : {0, 15, 63, 66}) {
          std::vector<float> data(kKeys * kDim, std::numeric_limits<float>::max());
          data[static_cast<std::size_t>(key * kDim + d)] = poison;
          Buffer<T> panels(plan::round_up(kDim, kPanel) * kKeys);
          std::vector<std::uint8_t> flags(4, 7);
          pack(PackValues<T>{{data.data(), DType::f32, kDim}, 0, kKeys, kDim, kKeys, panels.data(), flags.data()});
          for (std::int64_t panel = 0; panel < 4; ++panel) {
            EXPECT_EQ(flags[static_cast<std::size_t>(panel)], panel == key / kPanel ? 1 : 0) << key << ", " << d;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace heddle::cpu
