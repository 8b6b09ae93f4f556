// Widening and rounding through the SIMD path, on every target that the machine runs: every pattern of the 8- and
// 16-bit types, and for rounding every value of the format, every midpoint and their f32 neighbours.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "families/cpu/storage_vectors_test.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include "families/cpu/storage_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

#define HEDDLE_ROWS(Name, Storage)                                                                             \
  void Widen##Name(const Storage* from, std::int64_t count, float* to) { WidenRow(from, count, to); }          \
  void WidenToDouble##Name(const Storage* from, std::int64_t count, double* to) { WidenRow(from, count, to); } \
  void Round##Name(const float* from, std::int64_t count, Storage* to) { RoundRow(from, count, to); }          \
  void RoundDouble##Name(const double* from, std::int64_t count, Storage* to) { RoundRow(from, count, to); }
HEDDLE_ROWS(F64, double)
HEDDLE_ROWS(F32, float)
HEDDLE_ROWS(F16, f16)
HEDDLE_ROWS(Bf16, bf16)
HEDDLE_ROWS(E4m3, e4m3)
HEDDLE_ROWS(E5m2, e5m2)
#undef HEDDLE_ROWS

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "tile_evaluator/on_every_target.h"
#include "gtest/gtest.h"

namespace heddle::cpu {
namespace {

#define HEDDLE_EXPORT(Name, Storage)                                \
  HWY_EXPORT(Widen##Name);                                          \
  HWY_EXPORT(WidenToDouble##Name);                                  \
  HWY_EXPORT(Round##Name);                                          \
  HWY_EXPORT(RoundDouble##Name);                                    \
  void widen(const Storage* from, std::int64_t count, float* to) {  \
    HWY_DYNAMIC_DISPATCH(Widen##Name)(from, count, to);             \
  }                                                                 \
  void widen(const Storage* from, std::int64_t count, double* to) { \
    HWY_DYNAMIC_DISPATCH(WidenToDouble##Name)(from, count, to);     \
  }                                                                 \
  void round(const float* from, std::int64_t count, Storage* to) {  \
    HWY_DYNAMIC_DISPATCH(Round##Name)(from, count, to);             \
  }                                                                 \
  void round(const double* from, std::int64_t count, Storage* to) { \
    HWY_DYNAMIC_DISPATCH(RoundDouble##Name)(from, count, to);       \
  }
HEDDLE_EXPORT(F64, double)
HEDDLE_EXPORT(F32, float)
HEDDLE_EXPORT(F16, f16)
HEDDLE_EXPORT(Bf16, bf16)
HEDDLE_EXPORT(E4m3, e4m3)
HEDDLE_EXPORT(E5m2, e5m2)
#undef HEDDLE_EXPORT

template <class Storage>
class CpuConvert : public testing::Test {
 protected:
  using Bits = decltype(Storage::bits);
  static constexpr int kPatterns = 1 << (8 * sizeof(Storage));

  static float value(int pattern) { return static_cast<float>(base::decode(Storage{static_cast<Bits>(pattern)})); }
  static bool is_nan(Storage x) { return std::isnan(base::decode(x)); }
};
using SmallTypes = testing::Types<f16, bf16, e4m3, e5m2>;
TYPED_TEST_SUITE(CpuConvert, SmallTypes);

TYPED_TEST(CpuConvert, WidensEveryPattern) {
  using Storage = TypeParam;
  std::vector<Storage> patterns;
  for (int i = 0; i < this->kPatterns; ++i) patterns.push_back({static_cast<typename TestFixture::Bits>(i)});
  on_every_target([&] {
    std::vector<float> wide(patterns.size(), -1.0f);
    widen(patterns.data(), this->kPatterns, wide.data());
    std::vector<double> wider(patterns.size(), -1.0);
    widen(patterns.data(), this->kPatterns, wider.data());
    for (int i = 0; i < this->kPatterns; ++i) {
      const float expected = this->value(i), got = wide[static_cast<std::size_t>(i)];
      const double got_double = wider[static_cast<std::size_t>(i)];
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got) && std::isnan(got_double)) << "pattern " << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(expected)) << "pattern " << i;
        ASSERT_EQ(got_double, static_cast<double>(expected)) << "pattern " << i;
      }
    }
  });
}

TYPED_TEST(CpuConvert, RoundsEveryValueMidpointAndNeighbourToNearestEven) {
  using Storage = TypeParam;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> inputs = {kInfinity,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::min(),
                               1e30f,
                               65519.99f,
                               65520.0f,
                               464.0f,
                               464.1f,
                               463.9f};
  const auto with_neighbours = [&](float x) {
    inputs.insert(inputs.end(), {x, std::nextafter(x, kInfinity), std::nextafter(x, -kInfinity)});
  };
  // The positive half of the patterns in order; a midpoint has one bit more than the format, which f32 has.
  for (int i = 0; i < this->kPatterns / 2; ++i) {
    const float here = this->value(i), next = this->value(i + 1);
    if (!std::isfinite(here)) break;
    with_neighbours(here);
    if (std::isfinite(next)) with_neighbours(here + (next - here) / 2);
  }
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 4093) inputs.push_back(std::bit_cast<float>(bits));
  for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu}) inputs.push_back(std::bit_cast<float>(nan));
  for (std::size_t i = 0, n = inputs.size(); i < n; ++i) inputs.push_back(-inputs[i]);

  const auto count = static_cast<std::int64_t>(inputs.size());
  std::vector<Storage> expected;
  for (const float x : inputs) expected.push_back(base::encode<Storage>(x));
  on_every_target([&] {
    std::vector<Storage> got(inputs.size(), Storage{static_cast<typename TestFixture::Bits>(0x55)});
    round(inputs.data(), count, got.data());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (std::isnan(base::decode(expected[i]))) {
        ASSERT_TRUE(this->is_nan(got[i])) << inputs[i];
      } else {
        ASSERT_EQ(got[i].bits, expected[i].bits) << inputs[i];
      }
    }
  });
}

TYPED_TEST(CpuConvert, TouchesNothingOutsideARowOfAnyLength) {
  using Storage = TypeParam;
  on_every_target([&] {
    for (std::int64_t count = 0; count <= 40; ++count) {
      // The row lies against the end of its allocation, so that a sanitizer sees a read behind it.
      std::vector<Storage> row(static_cast<std::size_t>(count), base::encode<Storage>(1.5));
      std::vector<float> wide(static_cast<std::size_t>(count) + 1, -7.0f);
      widen(row.data(), count, wide.data());
      for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(wide[static_cast<std::size_t>(i)], 1.5f);
      ASSERT_EQ(wide.back(), -7.0f);

      std::vector<Storage> back(static_cast<std::size_t>(count) + 1, Storage{0x2a});
      round(std::vector<float>(wide.begin(), wide.end() - 1).data(), count, back.data());
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(back[static_cast<std::size_t>(i)].bits, base::encode<Storage>(1.5).bits);
      }
      ASSERT_EQ(back.back().bits, 0x2a);
    }
  });
}

TYPED_TEST(CpuConvert, RoundsDoublesOnce) {
  using Storage = TypeParam;
  // Just above the midpoint of 1 and the next value: through f32 it would land on the midpoint and go down to even.
  const float next = this->value([] {
    const Storage one = base::encode<Storage>(1.0);
    return one.bits + 1;
  }());
  const double above = 1.0 + (static_cast<double>(next) - 1.0) / 2 + 1e-12;
  Storage rounded{};
  round(&above, 1, &rounded);
  EXPECT_EQ(base::decode(rounded), static_cast<double>(next));
}

// There and back through the other type, or through the same one.
template <class From, class To>
void expect_passes_through() {
  const std::vector<From> values = {0, From(-0.0f), From(1.5f), From(std::numeric_limits<float>::denorm_min()),
                                    From(-3e38f)};
  std::vector<To> there(values.size(), To(9));
  std::vector<From> back(values.size(), From(9));
  widen(values.data(), static_cast<std::int64_t>(values.size()), there.data());
  round(there.data(), static_cast<std::int64_t>(values.size()), back.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(there[i], static_cast<To>(values[i]));
    EXPECT_EQ(back[i], values[i]);
    EXPECT_EQ(std::signbit(back[i]), std::signbit(values[i]));
  }
}

TEST(CpuConvertWide, F32AndF64PassThrough) {
  on_every_target([] {
    expect_passes_through<float, float>();
    expect_passes_through<float, double>();
    expect_passes_through<double, float>();
    expect_passes_through<double, double>();
  });
}

}  // namespace
}  // namespace heddle::cpu
#endif  // HWY_ONCE
