// Kernels of arithmetic, against the same statements on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/amd/simulator/half.h"
#include "backend/amd/simulator/simulated.h"

namespace heddle::amd::simulator {
namespace {

using ArithmeticKernels = OnEveryChip;
INSTANTIATE_TEST_SUITE_P(, ArithmeticKernels, ::testing::ValuesIn(chips()),
                         [](const auto& chip) { return chip.param; });

constexpr std::size_t kCount = 128;

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Normal values, and the ones at which rules change.
std::vector<float> floats(std::uint64_t seed) {
  std::vector<float> values = random_floats(kCount, seed, 3);
  const float special[] = {0.0f,    -0.0f, 1.0f,  -1.0f,  0.5f,      65519.0f,   65520.0f, 1e30f,
                           -1e-30f, 3e-8f, 6e-8f, 1e-39f, HUGE_VALF, -HUGE_VALF, NAN};
  std::copy(std::begin(special), std::end(special), values.begin() + static_cast<std::ptrdiff_t>(seed * 7));
  return values;
}

/// Equal bits, or both NaN.
void expect_same(float actual, float expected, const char* what, std::size_t i) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << what << " of element " << i;
  } else {
    EXPECT_EQ(bits(actual), bits(expected)) << what << " of element " << i << ": " << actual << ", not " << expected;
  }
}

TEST_P(ArithmeticKernels, transcendental) {
  Simulated gpu("arithmetic", GetParam());
  const std::vector<float> in = floats(1);
  const std::uint64_t from = gpu.input(in), to = gpu.output<float>(kCount * 10);
  const Report report = gpu.run("transcendental", {2, 1, 1}, 64, Arguments().add(to).add(from));
  EXPECT_GT(report.of(Class::kTranscendental).cycles, 0u);
  const auto out = gpu.values<float>(to, kCount * 10);
  const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
  for (std::size_t i = 0; i < kCount; ++i) {
    const float x = in[i], *row = &out[i * 10];
    expect_same(row[0], flushed(std::exp2(x)), "exp2", i);
    expect_same(row[1], std::log2(flushed(x)), "log2", i);
    expect_same(row[2], flushed(1 / flushed(x)), "rcp", i);
    expect_same(row[4], std::sqrt(flushed(x)), "sqrt", i);
    if (std::isfinite(x) && std::fabs(x) < 1e6f) {
      if (x >= 0x1p-126f) {
        EXPECT_NEAR(row[3] * std::sqrt(x), 1, 1e-6) << x;
      }
      const double turn = 6.283185307179586 * static_cast<double>(x);
      EXPECT_NEAR(row[5], std::sin(turn), 1e-4) << x;
      EXPECT_NEAR(row[6], std::cos(turn), 1e-4) << x;
      expect_same(row[7], std::min(x - std::floor(x), 0x1.fffffep-1f), "fract", i);
    }
    expect_same(row[8], std::exp2(x), "exp2 with denormals", i);
    expect_same(row[9], std::ldexp(x, static_cast<int>(i % 5)), "ldexp", i);
  }
}

TEST_P(ArithmeticKernels, floats) {
  Simulated gpu("arithmetic", GetParam());
  const std::vector<float> a = floats(1), b = floats(3), c = floats(5);
  const std::uint64_t to = gpu.output<float>(kCount * 20);
  gpu.run("floats", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(a)).add(gpu.input(b)).add(gpu.input(c)));
  const auto out = gpu.values<float>(to, kCount * 20);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float x = a[i], y = b[i], z = c[i], *row = &out[i * 20];
    const float expected[] = {x + y,
                              x - y,
                              x * y,
                              x / y,
                              std::fma(x, y, z),
                              std::fma(-x, y, -std::fabs(z)),
                              std::fmin(x, y),
                              std::fmax(x, std::fmax(y, z))};
    for (std::size_t n = 0; n < std::size(expected); ++n) {
      if ((n == 6 || n == 7) && row[n] == 0) continue;  // which zero is free
      expect_same(row[n], expected[n], "result", n);
    }
    if (!std::isnan(x) && !std::isnan(y) && !std::isnan(z)) {
      expect_same(row[8] + 0.0f, std::max(std::min(x, y), std::min(std::max(x, y), z)) + 0.0f, "med3", i);
    }
    const float rounded[] = {std::floor(x),
                             std::ceil(x),
                             std::trunc(x),
                             std::rint(x),
                             std::sqrt(std::fabs(x)),
                             std::copysign(x, y),
                             x < y ? x : z,
                             x >= z && y != z ? y : -x,
                             std::isnan(x) || std::isinf(y) ? 1.0f : 2.0f};
    for (std::size_t n = 0; n < std::size(rounded); ++n) {
      if (n == 5 && std::isnan(x)) continue;
      expect_same(row[9 + n], rounded[n], "result 9 +", n);
    }
    expect_same(row[18] + 0.0f, std::fmin(std::fmax(x, 0.0f), 1.0f) + 0.0f, "clamp", i);
    expect_same(row[19], std::fma(x, 0.5f, 4.0f) * 2.0f, "fma with scale", i);
  }
}

TEST_P(ArithmeticKernels, conversions) {
  Simulated gpu("arithmetic", GetParam());
  const std::vector<float> in = floats(2);
  const auto integers = random_integers<std::int32_t>(kCount);
  const std::uint64_t to = gpu.output<std::uint32_t>(kCount * 14);
  gpu.run("conversions", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(in)).add(gpu.input(integers)));
  const auto out = gpu.values<std::uint32_t>(to, kCount * 14);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float x = in[i];
    const std::int32_t n = integers[i];
    const std::uint32_t* row = &out[i * 14];
    if (std::isnan(x)) continue;
    EXPECT_EQ(row[0], float_to_half(x)) << x;
    EXPECT_EQ(row[1], bits(half_to_float(float_to_half(x)))) << x;
    EXPECT_EQ(row[2], float_to_bfloat(x)) << x;
    EXPECT_EQ(row[3], bits(static_cast<float>(n)));
    EXPECT_EQ(row[4], bits(static_cast<float>(static_cast<std::uint32_t>(n))));
    const float small = std::min(std::max(x, -1e9f), 1e9f);
    EXPECT_EQ(row[5], static_cast<std::uint32_t>(static_cast<std::int32_t>(small)));
    EXPECT_EQ(row[6], static_cast<std::uint32_t>(std::max(small, 0.0f)));
    EXPECT_EQ(row[7], float_to_half_toward_zero(x) | float_to_half_toward_zero(-x) << 16) << x;
    EXPECT_EQ(row[8], float_to_half(x) | float_to_half(x + 1.0f) << 16) << x;
    EXPECT_EQ(row[9], bits(static_cast<float>(n & 255)));
    EXPECT_EQ(row[10], bits(static_cast<float>(n >> 8 & 255)));
    EXPECT_EQ(row[11], bits(static_cast<float>(static_cast<std::int16_t>(n))));
    EXPECT_EQ(row[12], bits(static_cast<float>(static_cast<double>(x) * 3.0))) << x;
    EXPECT_EQ(row[13], static_cast<std::uint32_t>(n & 1023));
  }
}

TEST_P(ArithmeticKernels, halves) {
  Simulated gpu("arithmetic", GetParam());
  std::vector<std::uint32_t> a, b, c;
  for (const auto& [to, seed] : {std::pair{&a, 1u}, {&b, 2u}, {&c, 3u}}) {
    const auto low = random_floats(kCount, seed), high = random_floats(kCount, seed + 10, 100);
    for (std::size_t i = 0; i < kCount; ++i) to->push_back(float_to_half(low[i]) | float_to_half(high[i]) << 16);
  }
  const std::uint64_t to = gpu.output<std::uint32_t>(kCount * 12);
  gpu.run("halves", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(a)).add(gpu.input(b)).add(gpu.input(c)));
  const auto out = gpu.values<std::uint32_t>(to, kCount * 12);
  const auto low = [](std::uint32_t pair) { return half_to_float(pair & 0xffff); };
  const auto high = [](std::uint32_t pair) { return half_to_float(pair >> 16); };
  const auto pack = [](double l,
                       double h) {  // products and sums of f16 are exact in f64; f32 on the way would round twice
    const auto rounded = [](double value) {
      float narrowed = static_cast<float>(value);
      if (static_cast<double>(narrowed) != value && !(bits(narrowed) & 1))
        narrowed = std::nextafter(narrowed, value > narrowed ? HUGE_VALF : -HUGE_VALF);
      return float_to_half(narrowed);
    };
    return rounded(l) | rounded(h) << 16;
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    const double xl = low(a[i]), xh = high(a[i]), yl = low(b[i]), yh = high(b[i]), zl = low(c[i]), zh = high(c[i]);
    const std::uint32_t* row = &out[i * 12];
    EXPECT_EQ(row[0], pack(xl + yl, xh + yh));
    EXPECT_EQ(row[1], pack(xl * yl, xh * yh));
    EXPECT_EQ(row[2], pack(xl * yl + zl, xh * yh + zh));
    EXPECT_EQ(row[3], pack(std::max(xl, yl), std::max(xh, yh)));
    EXPECT_EQ(row[4], pack(std::min(xl, -yl), std::min(xh, -yh)));
    EXPECT_EQ(row[5], pack(yh, xl));
    EXPECT_EQ(row[6], pack(xl + yh, 0));
    EXPECT_EQ(row[7], pack(xh * yl, 0));
    const float mixed = static_cast<float>(xl) * static_cast<float>(yh) + static_cast<float>(zh);
    const float fused = std::fma(static_cast<float>(xl), static_cast<float>(yh), static_cast<float>(zh));
    EXPECT_TRUE(row[8] == bits(mixed) || row[8] == bits(fused));
    EXPECT_EQ(row[9], bits(std::fma(static_cast<float>(xh), static_cast<float>(yl), static_cast<float>(zl))));
    EXPECT_EQ(row[10], pack(xl - zl * 2, xh - zh * 2));
    EXPECT_EQ(row[11], xl < yl ? 1u : xh >= yh ? 2u : 3u);
  }
}

TEST_P(ArithmeticKernels, integers_wrap) {
  Simulated gpu("arithmetic", GetParam());
  auto a = random_integers<std::uint32_t>(kCount, 1), b = random_integers<std::uint32_t>(kCount, 2);
  a[0] = 0, a[1] = ~0u, a[2] = 1u << 31, b[2] = 0, b[3] = ~0u, b[4] = 2, a[5] = 5;
  const std::uint64_t to = gpu.output<std::uint32_t>(kCount * 28);
  gpu.run("integers", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(a)).add(gpu.input(b)));
  const auto out = gpu.values<std::uint32_t>(to, kCount * 28);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::uint32_t x = a[i], y = b[i];
    const auto sx = static_cast<std::int32_t>(x), sy = static_cast<std::int32_t>(y),
               odd = static_cast<std::int32_t>(y | 1);
    const auto of = [](auto value) { return static_cast<std::uint32_t>(value); };
    std::uint32_t reversed = 0;
    for (int n = 0; n < 32; ++n) reversed |= (x >> n & 1) << (31 - n);
    const std::uint32_t expected[] = {x + y,
                                      x - y,
                                      x * y,
                                      x * y + x,
                                      x / (y | 1),
                                      odd == -1 ? 0 - x : of(sx / odd),
                                      x % (y | 1),
                                      of(static_cast<std::uint64_t>(x) * y >> 32),
                                      of((static_cast<std::int64_t>(sx) * sy) >> 32),
                                      x << (y & 31),
                                      x >> (y & 31),
                                      of(sx >> (y & 31)),
                                      (x & y) | (~x & 0xff00ff00),
                                      x ^ y,
                                      of(std::popcount(x) + std::popcount(y)),
                                      of(std::countl_zero(x)),
                                      of(std::countr_zero(x)),
                                      reversed,
                                      __builtin_bswap32(x),
                                      std::min(x, y),
                                      of(std::max(sx, sy)),
                                      x >> 5 & 0x7ff,
                                      of(static_cast<std::int32_t>(x << 9) >> 20),
                                      std::rotl(x, 7),
                                      (x << 3) + y,
                                      x + y + 17,
                                      (y >> 8 & 0xff) | (x >> 8 & 0xff) << 8 | (y >> 16 & 0xff) << 16 | (x >> 24) << 24,
                                      x * 24 + (y & 0xffffff) * (x & 0xffffff)};
    for (std::size_t n = 0; n < std::size(expected); ++n)
      EXPECT_EQ(out[i * 28 + n], expected[n]) << "result " << n << " of " << x << ", " << y;
  }
}

TEST_P(ArithmeticKernels, wide_integers) {
  Simulated gpu("arithmetic", GetParam());
  auto a = random_integers<std::uint64_t>(kCount, 1), b = random_integers<std::uint64_t>(kCount, 2);
  a[0] = 0, a[1] = ~0ull, b[1] = 1, b[2] = 63, b[3] = 0, a[4] = b[4], b[5] &= 0xffff;
  const std::uint64_t to = gpu.output<std::uint64_t>(kCount * 14);
  gpu.run("wide_integers", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(a)).add(gpu.input(b)));
  const auto out = gpu.values<std::uint64_t>(to, kCount * 14);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::uint64_t x = a[i], y = b[i];
    const auto sx = static_cast<std::int64_t>(x), sy = static_cast<std::int64_t>(y);
    const std::uint64_t expected[] = {
        x + y,
        x - y,
        x * y,
        x << (y & 63),
        x >> (y & 63),
        static_cast<std::uint64_t>(sx >> (y & 63)),
        std::min(x, y),
        sx > sy ? 1u : 0u,
        (x & y) ^ ~y,
        static_cast<std::uint64_t>(std::countl_zero(x)),
        (x & 0xffffffff) * (y & 0xffffffff) + (x >> 32),
        x == y ? 5 : x,
        static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(x)) *
                                   static_cast<std::int32_t>(y)),
        x / (y | 1)};
    for (std::size_t n = 0; n < std::size(expected); ++n)
      EXPECT_EQ(out[i * 14 + n], expected[n]) << "result " << n << " of " << x << ", " << y;
  }
}

TEST_P(ArithmeticKernels, rounds_of_a_generator) {
  Simulated gpu("arithmetic", GetParam());
  const std::uint64_t to = gpu.output<std::uint32_t>(kCount * 4);
  gpu.run("rounds", {2, 1, 1}, 64, Arguments().add(to).add(0x12345678u).add(0x9abcdef0u));
  const auto out = gpu.values<std::uint32_t>(to, kCount * 4);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    std::uint32_t c[4] = {i, i * 7, 3, ~i}, key[2] = {0x12345678u, 0x9abcdef0u};
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
      c[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ key[0];
      c[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ key[1];
      c[1] = static_cast<std::uint32_t>(p1);
      c[3] = static_cast<std::uint32_t>(p0);
      key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
    for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(out[i * 4 + n], c[n]);
  }
}

TEST_P(ArithmeticKernels, doubles) {
  Simulated gpu("arithmetic", GetParam());
  std::vector<double> a, b, c;
  for (const auto& [to, seed] : {std::pair{&a, 1u}, {&b, 2u}, {&c, 3u}}) {
    for (const float x : random_floats(kCount, seed, 10)) to->push_back(static_cast<double>(x) * 1.1);
  }
  a[0] = 0, b[1] = 0, b[2] = HUGE_VAL, a[3] = 1e300, b[3] = 1e-10, a[4] = 1e-310;
  const std::uint64_t to = gpu.output<double>(kCount * 14);
  gpu.run("doubles", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(a)).add(gpu.input(b)).add(gpu.input(c)));
  const auto out = gpu.values<double>(to, kCount * 14);
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = a[i], y = b[i], z = c[i], *row = &out[i * 14];
    const double expected[] = {x + y,
                               std::fma(x, y, -z),
                               std::fma(x, y, z),
                               x / y,
                               std::sqrt(std::fabs(x)),
                               std::max(x, y),
                               std::min(-x, z),
                               std::floor(x),
                               x < y ? z : y,
                               static_cast<double>(static_cast<float>(x)),
                               static_cast<double>(static_cast<int>(z)) + static_cast<double>(i),
                               std::rint(y),
                               x * 8,
                               static_cast<double>(static_cast<std::int64_t>(z * 1000.0))};
    for (std::size_t n = 0; n < std::size(expected); ++n) {
      if (std::isnan(expected[n])) {
        EXPECT_TRUE(std::isnan(row[n]));
      } else {
        EXPECT_EQ(row[n], expected[n]) << "result " << n << " of " << x << ", " << y << ", " << z;
      }
    }
  }
}

TEST_P(ArithmeticKernels, branches) {
  Simulated gpu("arithmetic", GetParam());
  const auto in = random_integers<std::uint32_t>(kCount);
  const std::uint64_t to = gpu.output<std::uint32_t>(kCount);
  gpu.run("branches", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(in)));
  const auto out = gpu.values<std::uint32_t>(to, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::uint32_t x = in[i];
    std::uint32_t sum = 0;
    for (std::uint32_t k = 0; k < x % 13; ++k) {
      if ((x >> k) & 1) {
        if (k % 3 == 2) continue;
        sum += k * x;
        if (sum % 7 == 3) break;
      } else {
        sum ^= x >> k;
      }
    }
    switch (x % 5) {
      case 0:
        sum += 100;
        break;
      case 1:
        sum *= 3;
        break;
      case 2:
        sum -= x;
        break;
      case 3:
        sum = ~sum;
        break;
      default:
        break;
    }
    while (sum > 1000) sum = sum / 3 + 1;
    EXPECT_EQ(out[i], sum) << x;
  }
}

}  // namespace
}  // namespace heddle::amd::simulator
