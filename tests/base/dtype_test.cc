// Conversions of the small floating types, exhaustively, against a plain computation: the table of all values of the
// format in increasing order, and a search in it.
#include "heddle/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/element.h"
#include "heddle/error.h"

namespace heddle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Format {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
  std::uint32_t (*narrow)(double);
  float (*widen)(std::uint32_t);

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint32_t sign() const { return 1u << (bits() - 1); }
  std::uint32_t infinity() const { return ((1u << exponent_bits) - 1u) << mantissa_bits; }
  /// Largest finite pattern without sign.
  std::uint32_t largest() const { return has_infinity ? infinity() - 1u : sign() - 2u; }
  bool is_nan(std::uint32_t pattern) const {
    const std::uint32_t magnitude = pattern & (sign() - 1u);
    return has_infinity ? magnitude > infinity() : magnitude == sign() - 1u;
  }
  /// The value that the definition of the format gives to a finite pattern without sign.
  double value(std::uint32_t pattern) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(pattern >> mantissa_bits);
    const double fraction = static_cast<double>(pattern & ((1u << mantissa_bits) - 1u)) / std::exp2(mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias);
  }
};

const Format kFormats[] = {
    {DType::f16, 5, 10, true, [](double x) -> std::uint32_t { return to_f16(x).bits; },
     [](std::uint32_t b) { return to_f32(f16{static_cast<std::uint16_t>(b)}); }},
    {DType::bf16, 8, 7, true, [](double x) -> std::uint32_t { return to_bf16(x).bits; },
     [](std::uint32_t b) { return to_f32(bf16{static_cast<std::uint16_t>(b)}); }},
    {DType::e4m3, 4, 3, false, [](double x) -> std::uint32_t { return to_e4m3(x).bits; },
     [](std::uint32_t b) { return to_f32(e4m3{static_cast<std::uint8_t>(b)}); }},
    {DType::e5m2, 5, 2, true, [](double x) -> std::uint32_t { return to_e5m2(x).bits; },
     [](std::uint32_t b) { return to_f32(e5m2{static_cast<std::uint8_t>(b)}); }},
};

class SmallFloat : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, SmallFloat, testing::ValuesIn(kFormats),
                         [](const auto& param_info) { return std::string(name(param_info.param.dtype)); });

TEST_P(SmallFloat, WideningGivesTheDefinedValueOfEveryPattern) {
  const Format& format = GetParam();
  for (std::uint32_t pattern = 0; pattern < format.sign(); ++pattern) {
    const float positive = format.widen(pattern);
    const float negative = format.widen(pattern | format.sign());
    if (format.is_nan(pattern)) {
      ASSERT_TRUE(std::isnan(positive) && std::isnan(negative)) << pattern;
    } else {
      const bool infinite = format.has_infinity && pattern == format.infinity();
      ASSERT_EQ(positive, infinite ? kInfinity : format.value(pattern)) << pattern;
      ASSERT_EQ(negative, -positive) << pattern;
    }
    ASSERT_FALSE(std::signbit(positive)) << pattern;
    ASSERT_TRUE(std::signbit(negative)) << pattern;
  }
}

TEST_P(SmallFloat, EveryPatternSurvivesTheRoundTrip) {
  const Format& format = GetParam();
  for (std::uint32_t pattern = 0; pattern < 2 * format.sign(); ++pattern) {
    const std::uint32_t back = format.narrow(format.widen(pattern));
    if (format.is_nan(pattern)) {
      ASSERT_TRUE(format.is_nan(back)) << pattern;
      ASSERT_EQ(back & format.sign(), pattern & format.sign()) << pattern;
    } else {
      ASSERT_EQ(back, pattern);
    }
  }
}

TEST_P(SmallFloat, MidpointsGoToEvenAndTheirNeighboursToTheNearest) {
  const Format& format = GetParam();
  for (std::uint32_t lower = 0; lower <= format.largest(); ++lower) {
    // Above the largest number the next one is where the grid would go on; its name is infinity or NaN.
    const std::uint32_t upper = lower + 1;
    const double midpoint = lower == format.largest()
                                ? format.value(lower) + (format.value(lower) - format.value(lower - 1)) / 2
                                : (format.value(lower) + format.value(upper)) / 2;
    for (const std::uint32_t sign : {0u, format.sign()}) {
      const double at = sign != 0 ? -midpoint : midpoint;
      const double below = std::nextafter(at, 0.0);
      const double above = std::nextafter(at, sign != 0 ? -kInfinity : kInfinity);
      ASSERT_EQ(format.narrow(at), sign | (lower % 2 == 0 ? lower : upper)) << at;
      ASSERT_EQ(format.narrow(below), sign | lower) << at;
      ASSERT_EQ(format.narrow(above), sign | upper) << at;
    }
  }
}

TEST_P(SmallFloat, SpecialValues) {
  const Format& format = GetParam();
  const std::uint32_t overflow = format.largest() + 1;
  EXPECT_EQ(format.narrow(kInfinity), overflow);
  EXPECT_EQ(format.narrow(-kInfinity), overflow | format.sign());
  EXPECT_EQ(format.narrow(std::numeric_limits<double>::max()), overflow);
  EXPECT_EQ(format.narrow(0.0), 0u);
  EXPECT_EQ(format.narrow(-0.0), format.sign());
  EXPECT_EQ(format.narrow(std::numeric_limits<double>::denorm_min()), 0u);
  EXPECT_EQ(format.narrow(-std::numeric_limits<double>::min()), format.sign());
  const std::uint32_t quiet = format.has_infinity ? format.infinity() | (1u << (format.mantissa_bits - 1)) : overflow;
  EXPECT_EQ(format.narrow(std::bit_cast<double>(0x7ff0000000000001u)), quiet);
  EXPECT_EQ(format.narrow(std::bit_cast<double>(0xfff8000000000000u)), quiet | format.sign());
  EXPECT_EQ(format.narrow(std::bit_cast<double>(0xffffffffffffffffu)), quiet | format.sign());
}

/// All values from 0 on, and the one at which the grid would go on, whose pattern is infinity's or NaN's.
std::vector<double> grid_of(const Format& format) {
  std::vector<double> values;
  for (std::uint32_t pattern = 0; pattern <= format.largest(); ++pattern) values.push_back(format.value(pattern));
  values.push_back(2 * values[values.size() - 1] - values[values.size() - 2]);
  return values;
}

/// Nearest of the table's neighbours by exact distances; a tie goes to the even pattern.
std::uint32_t nearest_by_search(const Format& format, const std::vector<double>& values, double x) {
  const std::uint32_t sign = std::signbit(x) ? format.sign() : 0u;
  const double magnitude = std::fabs(x);
  const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
  const auto upper = static_cast<std::uint32_t>(above - values.begin());
  const std::uint32_t lower = upper - 1;
  if (upper == values.size()) return sign | lower;
  // The differences are exact or so far apart that their rounding cannot reorder them.
  const double down = magnitude - values[lower];
  const double up = values[upper] - magnitude;
  if (down != up) return sign | (down < up ? lower : upper);
  return sign | (lower % 2 == 0 ? lower : upper);
}

TEST_P(SmallFloat, RandomDoublesGoToTheNearest) {
  const Format& format = GetParam();
  const std::vector<double> values = grid_of(format);
  std::mt19937_64 random(20240611);
  const int lowest = 1 - ((1 << (format.exponent_bits - 1)) - 1) - format.mantissa_bits - 3;
  const int highest = (1 << (format.exponent_bits - 1)) + 1;
  std::uniform_int_distribution<int> exponents(lowest, highest);
  for (int i = 0; i < 400000; ++i) {
    const std::uint64_t bits = random();
    // Clearing low bits at random makes ties and near ties common.
    const std::uint64_t kept = bits & ~((std::uint64_t{1} << (random() % 52)) - 1);
    const double fraction = std::bit_cast<double>((kept & 0x800fffffffffffffu) | 0x3ff0000000000000u);
    const double x = std::ldexp(fraction, exponents(random));
    ASSERT_EQ(format.narrow(x), nearest_by_search(format, values, x)) << std::hexfloat << x;
  }
}

TEST_P(SmallFloat, AnyBitsOfADoubleGoToTheNearest) {
  const Format& format = GetParam();
  const std::vector<double> values = grid_of(format);
  std::mt19937_64 random(8);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::bit_cast<double>(random());
    if (std::isnan(x)) {
      ASSERT_TRUE(format.is_nan(format.narrow(x)));
    } else {
      ASSERT_EQ(format.narrow(x), nearest_by_search(format, values, x)) << std::hexfloat << x;
    }
  }
}

TEST_P(SmallFloat, DoubleDoesNotGoThroughFloat) {
  const Format& format = GetParam();
  // Just above the midpoint of 1 and its successor: float would round to the midpoint, and that to even, which is 1.
  const double x = 1.0 + std::exp2(-format.mantissa_bits - 1) + std::exp2(-40);
  const std::uint32_t one = format.narrow(1.0);
  EXPECT_EQ(format.narrow(x), one + 1);
  EXPECT_EQ(format.narrow(static_cast<float>(x)), one);
}

TEST_P(SmallFloat, ElementAccessAgrees) {
  const Format& format = GetParam();
  for (std::uint32_t pattern = 0; pattern < 2 * format.sign(); ++pattern) {
    const auto small = static_cast<std::uint16_t>(pattern);
    const double loaded = base::load_element(&small, format.dtype, 0);
    std::uint16_t stored = 0;
    base::store_element(&stored, format.dtype, 0, loaded);
    if (format.is_nan(pattern)) {
      ASSERT_TRUE(std::isnan(loaded));
      ASSERT_TRUE(format.is_nan(stored));
    } else {
      ASSERT_EQ(loaded, static_cast<double>(format.widen(pattern)));
      ASSERT_EQ(stored, small);
    }
  }
}

/// The value is hidden from the compiler, which folds even conversions that the processor does differently.
template <class Integer>
Integer saturated(double x) {
  volatile double hidden = x;
  return base::saturate<Integer>(hidden);
}

TEST(Element, IntegersTruncateAndSaturate) {
  EXPECT_EQ(saturated<std::int8_t>(-1.9), -1);
  EXPECT_EQ(saturated<std::int8_t>(127.9), 127);
  EXPECT_EQ(saturated<std::int8_t>(128.0), 127);
  EXPECT_EQ(saturated<std::int8_t>(-128.9), -128);
  EXPECT_EQ(saturated<std::int8_t>(-kInfinity), -128);
  EXPECT_EQ(saturated<std::uint8_t>(-0.5), 0);
  EXPECT_EQ(saturated<std::uint8_t>(-7), 0);
  EXPECT_EQ(saturated<std::uint8_t>(256), 255);
  EXPECT_EQ(saturated<std::int32_t>(2147483647.5), 2147483647);
  EXPECT_EQ(saturated<std::int32_t>(2147483646.5), 2147483646);
  EXPECT_EQ(saturated<std::int32_t>(std::nan("")), 0);
  EXPECT_EQ(saturated<std::int64_t>(0x1p63), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(saturated<std::int64_t>(std::nextafter(0x1p63, 0)), std::int64_t{0x7ffffffffffffc00});
  EXPECT_EQ(saturated<std::int64_t>(-0x1p63), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(saturated<std::uint64_t>(0x1p64), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(saturated<std::uint64_t>(0x1p63), std::uint64_t{1} << 63);
}

TEST(Element, FloatsAreTheNearest) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 200000; ++i) {
    const double x =
        std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())), static_cast<int>(random() % 250) - 190);
    float stored = 0;
    base::store_element(&stored, DType::f32, 0, x);
    const double error = std::fabs(stored - x);
    for (const float direction : {-INFINITY, INFINITY}) {
      ASSERT_LE(error, std::fabs(std::nextafterf(stored, direction) - x)) << std::hexfloat << x;
    }
  }
}

TEST(Element, MemoryNeedNotBeAligned) {
  alignas(8) std::array<std::byte, 32> memory{};
  base::store_element(memory.data() + 1, DType::f64, 1, 1.5);
  EXPECT_EQ(base::load_element(memory.data() + 1, DType::f64, 1), 1.5);
}

TEST(DTypes, NamesAndSizes) {
  const std::vector<std::int64_t> sizes{8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1};
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(size_of(dtype), sizes[static_cast<std::size_t>(i)]) << name(dtype);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
    EXPECT_EQ(is_floating(dtype), i < 6) << name(dtype);
    base::with_storage_type(dtype, [&]<class T>(std::type_identity<T>) { EXPECT_EQ(size_of(dtype), sizeof(T)); });
  }
  EXPECT_EQ(name(DType::boolean), "bool");
  EXPECT_EQ(name(DType::e4m3), "e4m3");
}

TEST(DTypes, UnknownNamesAreRefused) {
  for (const char* text : {"", "F32", "f32 ", "float", "boolean"}) {
    try {
      parse_dtype(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string(error.what()),
                "dtype is '" + std::string(text) +
                    "'; accepted are f64, f32, f16, bf16, e4m3, e5m2, i64, i32, i16, i8, u64, u32, u16, u8, bool");
    }
  }
  EXPECT_THROW(size_of(static_cast<DType>(15)), Error);
}

}  // namespace
}  // namespace heddle
