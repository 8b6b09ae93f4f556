// The functions of reals of AMD's kernels, run on the host: within the errors of ops.def, with the edges of C99.
#include "language/functions.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace heddle::amd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// How many steps of f32 lie between a result and the true one.
double error_in_ulp(float found, double expected) {
  if (std::isnan(expected)) return std::isnan(found) ? 0 : kInf;
  const auto rounded = static_cast<float>(expected);
  if (std::isinf(rounded) || std::isinf(found)) return found == rounded ? 0 : kInf;
  const int exponent = std::max(-126, std::ilogb(expected == 0 ? 1e-300 : expected));
  return std::abs(static_cast<double>(found) - expected) / std::ldexp(1.0, exponent - 23);
}

struct Function {
  const char* name;
  float (*ours)(float);
  double (*right)(double);
  double most;
};

namespace bound {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) constexpr double name = ulp;
#include "expr/ops.def"
}  // namespace bound

const Function kFunctions[] = {
#define HEDDLE_REAL_FUNCTION(name) {#name, name##_f32, std::name, bound::name},
#include "shared/real_functions.def"
    {"rsqrt", rsqrt_f32, [](double x) { return 1 / std::sqrt(x); }, bound::rsqrt},
};

TEST(AmdFunctions, AreWithinTheirErrors) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  for (const Function& f : kFunctions) {
    double worst = 0;
    float at = 0;
    const auto judge = [&](float x) {
      const double error = error_in_ulp(f.ours(x), f.right(x));
      if (!(error <= worst)) worst = error, at = x;
    };
    for (const float x : {0.0F, -0.0F, 1.0F,  -1.0F,  0.5F,    1e-40F, -1e-40F, 1e-30F,       3.4e38F, -3.4e38F,
                          kInf, -kInf, 88.8F, -87.4F, -103.9F, 0.65F,  4.0F,    6.7108864e7F, 1.7e9F,  std::nanf("")}) {
      judge(x);
    }
    for (int i = 0; i < 200'000; ++i) judge(std::bit_cast<float>(static_cast<std::uint32_t>(rng())));
    for (int i = 0; i < 200'000; ++i) judge(3 * normal(rng));
    EXPECT_LE(worst, f.most) << f.name << "(" << at << ") is " << f.ours(at) << ", not " << f.right(at);
  }
}

TEST(AmdFunctions, RemaindersAreExact) {
  std::mt19937 rng(8);
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(rng())),
                y = std::bit_cast<float>(static_cast<std::uint32_t>(rng()));
    const float expected = std::fmod(x, y), found = mod_f32(x, y);
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(found)
                                     : found == expected && std::signbit(found) == std::signbit(expected))
        << x << " % " << y << " is " << found << ", not " << expected;
  }
  EXPECT_EQ(mod_f32(5, kInf), 5);
}

TEST(AmdFunctions, OfF64AreNear) {
  std::mt19937_64 rng(9);
  std::normal_distribution<double> normal;
  const auto near = [](double found, double expected, double x) {
    const double step = std::ldexp(1.0, std::max(-1022, std::ilogb(expected == 0 ? 1 : expected)) - 52);
    EXPECT_LE(std::abs(found - expected), 3 * step) << x;
  };
  for (int i = 0; i < 100'000; ++i) {
    const double x = 50 * normal(rng), size = std::exp(20 * normal(rng));
    near(exp_f64(x), std::exp(x), x);
    near(exp2_f64(x), std::exp2(x), x);
    near(log_f64(size), std::log(size), size);
    near(log2_f64(size), std::log2(size), size);
  }
  EXPECT_EQ(exp_f64(-INFINITY), 0);
  EXPECT_EQ(exp_f64(INFINITY), INFINITY);
  EXPECT_EQ(exp2_f64(1024), INFINITY);
  EXPECT_TRUE(std::isnan(exp_f64(NAN)) && std::isnan(log_f64(-1)) && std::isnan(log2_f64(NAN)));
  EXPECT_EQ(log_f64(0), -INFINITY);
  EXPECT_NEAR(log_f64(0x1p-1060), -1060 * std::log(2.0), 1e-10);
}

TEST(AmdFunctions, ConvertWithTheirEdges) {
  EXPECT_EQ(saturated_int(std::nanf("")), 0);
  EXPECT_EQ(saturated_int(3e9F), 2147483647);
  EXPECT_EQ(saturated_int(-3e9F), -2147483647 - 1);
  EXPECT_EQ(saturated_int(-7.9F), -7);
  EXPECT_EQ(toward_zero(1 + 0x1.8p-23), 1 + 0x1p-23F);
  EXPECT_EQ(toward_zero(-1 - 0x1.8p-23), -1 - 0x1p-23F);
}

}  // namespace
}  // namespace heddle::amd
