// The functions of f64 of AMD's mods, run on the host: within the errors of ops.def, with the edges of C99.
#include "language/f64_functions.cuh"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "language/f64_angles.cuh"

namespace heddle::amd::f64 {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// How many steps of f64 lie between a result and the true one.
double error_in_ulp(double found, long double expected) {
  if (std::isnan(expected)) return std::isnan(found) ? 0 : kInf;
  const auto rounded = static_cast<double>(expected);
  if (std::isinf(rounded) || std::isinf(found)) return found == rounded ? 0 : kInf;
  if (expected == 0) return found == 0 ? 0 : std::abs(found) / std::numeric_limits<double>::denorm_min();
  const int exponent = std::max(-1022, std::ilogb(expected));
  return static_cast<double>(std::abs(found - expected) / std::ldexp(1.0L, exponent - 52));
}

namespace bound {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) constexpr double name = ulp;
#include "expr/ops.def"
}  // namespace bound

struct Function {
  const char* name;
  double (*ours)(double);
  long double (*right)(long double);
  double most;
};
const Function kFunctions[] = {
#define HEDDLE_REAL_FUNCTION(name) {#name, name, std::name, bound::name},
#include "shared/real_functions.def"
    {"rsqrt", rsqrt, [](long double x) { return 1 / std::sqrt(x); }, bound::rsqrt},
};

std::vector<double> arguments() {
  std::vector<double> all = {0.0,       1.0,         0.5,   0.25,    5e-324, 1e-310,  1e-300, 1.7e308,
                             kInf,      709.78,      745.1, 1074.5,  1023.5, 0.34657, 0.35,   19.999,
                             20.0,      6.7108864e7, 1e15,  1e22,    1e300,  27.2,    26.6,   0.41421,
                             0.4142136, 2.414,       1e-8,  0x1p-54, 0.7071, 1.4142,  37.5,   1.5707963267948966};
  // The numbers of f64 nearest to multiples of pi / 2, by exponents.
  for (const double x : {6381956970095103.0, 5261692873635770.0}) {
    for (const int n : {797, 499, 40, -3}) all.push_back(std::ldexp(x, n));
  }
  for (const double x : std::vector(all)) all.push_back(-x);
  all.push_back(std::nan(""));
  std::mt19937_64 rng(7);
  std::normal_distribution<double> normal;
  for (int i = 0; i < 100'000; ++i) all.push_back(std::bit_cast<double>(static_cast<std::uint64_t>(rng())));
  for (int i = 0; i < 100'000; ++i) all.push_back(3 * normal(rng));
  for (int i = 0; i < 100'000; ++i) all.push_back(std::exp(5 * normal(rng)) * (i % 2 == 0 ? 1 : -1));
  for (int i = 0; i < 20'000; ++i) all.push_back(std::round(std::exp(20 * std::abs(normal(rng)))) * 1.5707963267948966);
  return all;
}

TEST(AmdWideFunctions, AreWithinTheirErrors) {
  const std::vector<double> all = arguments();
  for (const Function& f : kFunctions) {
    double worst = 0, at = 0;
    for (const double x : all) {
      const double error = error_in_ulp(f.ours(x), f.right(x));
      if (!(error <= worst)) worst = error, at = x;
    }
    RecordProperty(f.name, std::to_string(worst));
    EXPECT_LE(worst, f.most) << f.name << "(" << at << ") is " << f.ours(at) << ", not " << f.right(at);
  }
}

TEST(AmdWideFunctions, PowersAreWithinTheirErrors) {
  std::mt19937_64 rng(8);
  std::normal_distribution<double> normal;
  std::vector<std::array<double, 2>> pairs;
  const std::array edges = {0.0,    1.0,    2.0,  3.0,    0.5,        2.5,         1e300,
                            1e-300, 5e-324, kInf, 0x1p53, 0x1p53 - 1, 1 + 0x1p-52, 1 - 0x1p-53};
  for (const double x : edges) {
    for (const double y : edges) pairs.insert(pairs.end(), {{x, y}, {-x, y}, {x, -y}, {-x, -y}});
    pairs.insert(pairs.end(), {{x, std::nan("")}, {std::nan(""), x}});
  }
  for (int i = 0; i < 200'000; ++i) {
    const double x = std::exp(i % 2 == 0 ? normal(rng) : 100 * normal(rng)) * (i % 5 == 0 ? -1 : 1);
    const double spread = 700 * normal(rng) / std::log(std::abs(x));
    pairs.push_back({x, i % 3 == 0 ? std::round(spread) : spread});
  }
  double worst = 0;
  for (const auto& [x, y] : pairs) {
    const double error = error_in_ulp(pow(x, y), std::pow(static_cast<long double>(x), static_cast<long double>(y)));
    worst = std::max(worst, error);
    ASSERT_LE(error, bound::pow) << x << " ** " << y << " is " << pow(x, y) << ", not " << std::pow(x, y);
  }
  RecordProperty("pow", std::to_string(worst));
}

TEST(AmdWideFunctions, RemaindersAreExact) {
  std::mt19937_64 rng(9);
  const auto any = [&] { return std::bit_cast<double>(static_cast<std::uint64_t>(rng())); };
  for (int i = 0; i < 100'000; ++i) {
    const double x = any(), y = i % 2 == 0 ? any() : std::ldexp(x, -static_cast<int>(rng() % 60)) * 0.77;
    const double expected = std::fmod(x, y), found = fmod(x, y);
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(found)
                                     : found == expected && std::signbit(found) == std::signbit(expected))
        << x << " % " << y << " is " << found << ", not " << expected;
  }
  EXPECT_EQ(fmod(5, kInf), 5);
  EXPECT_TRUE(std::isnan(fmod(5, 0)) && std::isnan(fmod(kInf, 2)) && std::isnan(fmod(2, std::nan(""))));
}

}  // namespace
}  // namespace heddle::amd::f64
