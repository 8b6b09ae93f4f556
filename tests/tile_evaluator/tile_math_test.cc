// The functions of tile_math-inl.h against the C library in the next wider type, on every SIMD target that the machine
// runs: the bounds of ops.def hold on a dense sample that visits every exponent, and on the edges.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tile_evaluator/tile_math_test.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

#include "tile_evaluator/tile_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

#define HEDDLE_UNARY(X)                                                                                          \
  X(Exp)                                                                                                         \
  X(Exp2)                                                                                                        \
  X(Exp2NoSubnormals)                                                                                            \
  X(Log)                                                                                                         \
  X(Log2) X(Tanh) X(Sigmoid) X(Rsqrt) X(Sin) X(Cos) X(Erf) X(Erfc) X(Expm1) X(Log1p) X(Tan) X(Atan) X(Ceil) X(RoundEven) \
      X(Trunc) X(Sign)
#define HEDDLE_BINARY(X) X(Pow) X(MinNan) X(MaxNan)

// Counts are multiples of the widest vector.
#define HEDDLE_RUN(Name)                                                                                      \
  template <class T>                                                                                          \
  void Run##Name(const T* x, const T*, T* out, std::size_t n) {                                               \
    const hn::ScalableTag<T> d;                                                                               \
    for (std::size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(Name(d, hn::LoadU(d, x + i)), d, out + i);   \
  }                                                                                                           \
  void Run##Name##F32(const float* x, const float* y, float* out, std::size_t n) { Run##Name(x, y, out, n); } \
  void Run##Name##F64(const double* x, const double* y, double* out, std::size_t n) { Run##Name(x, y, out, n); }
HEDDLE_UNARY(HEDDLE_RUN)
#undef HEDDLE_RUN
#define HEDDLE_RUN(Name)                                                                                      \
  template <class T>                                                                                          \
  void Run##Name(const T* x, const T* y, T* out, std::size_t n) {                                             \
    const hn::ScalableTag<T> d;                                                                               \
    for (std::size_t i = 0; i < n; i += hn::Lanes(d))                                                         \
      hn::StoreU(Name(d, hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, out + i);                              \
  }                                                                                                           \
  void Run##Name##F32(const float* x, const float* y, float* out, std::size_t n) { Run##Name(x, y, out, n); } \
  void Run##Name##F64(const double* x, const double* y, double* out, std::size_t n) { Run##Name(x, y, out, n); }
HEDDLE_BINARY(HEDDLE_RUN)
#undef HEDDLE_RUN

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "expr/node.h"
#include "gtest/gtest.h"
#include "sample.h"

namespace heddle::cpu {
namespace {

#define HEDDLE_EXPORT(Name)                                                                      \
  HWY_EXPORT(Run##Name##F32);                                                                    \
  HWY_EXPORT(Run##Name##F64);                                                                    \
  void Call##Name(std::span<const float> x, std::span<const float> y, std::span<float> out) {    \
    HWY_DYNAMIC_DISPATCH(Run##Name##F32)(x.data(), y.data(), out.data(), x.size());              \
  }                                                                                              \
  void Call##Name(std::span<const double> x, std::span<const double> y, std::span<double> out) { \
    HWY_DYNAMIC_DISPATCH(Run##Name##F64)(x.data(), y.data(), out.data(), x.size());              \
  }
HEDDLE_UNARY(HEDDLE_EXPORT)
HEDDLE_BINARY(HEDDLE_EXPORT)
#undef HEDDLE_EXPORT

template <class T>
using Wider = std::conditional_t<sizeof(T) == 4, double, long double>;

template <class T>
struct Function {
  const char* name;
  int ulp;
  void (*call)(std::span<const T>, std::span<const T>, std::span<T>);
  Wider<T> (*exact)(Wider<T>, Wider<T>);
};

constexpr int bound(expr::Op op) {
  constexpr int kUlp[] = {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) ulp,
#include "expr/ops.def"
  };
  return kUlp[static_cast<int>(op)];
}

template <class T>
std::vector<Function<T>> functions() {
  using W = Wider<T>;
  using expr::Op;
  return {
      {"exp", bound(Op::exp), CallExp, [](W x, W) { return std::exp(x); }},
      {"exp2", bound(Op::exp2), CallExp2, [](W x, W) { return std::exp2(x); }},
      {"exp2 without subnormals", bound(Op::exp2), CallExp2NoSubnormals,
       [](W x, W) { return x < std::numeric_limits<T>::min_exponent - 1 ? 0 : std::exp2(x); }},
      {"log", bound(Op::log), CallLog, [](W x, W) { return std::log(x); }},
      {"log2", bound(Op::log2), CallLog2, [](W x, W) { return std::log2(x); }},
      {"tanh", bound(Op::tanh), CallTanh, [](W x, W) { return std::tanh(x); }},
      {"sigmoid", bound(Op::sigmoid), CallSigmoid,
       [](W x, W) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }},
      {"rsqrt", bound(Op::rsqrt), CallRsqrt, [](W x, W) { return 1 / std::sqrt(x); }},
      {"sin", bound(Op::sin), CallSin, [](W x, W) { return std::sin(x); }},
      {"cos", bound(Op::cos), CallCos, [](W x, W) { return std::cos(x); }},
      {"erf", bound(Op::erf), CallErf, [](W x, W) { return std::erf(x); }},
      {"erfc", bound(Op::erfc), CallErfc, [](W x, W) { return std::erfc(x); }},
      {"expm1", bound(Op::expm1), CallExpm1, [](W x, W) { return std::expm1(x); }},
      {"log1p", bound(Op::log1p), CallLog1p, [](W x, W) { return std::log1p(x); }},
      {"tan", bound(Op::tan), CallTan, [](W x, W) { return std::tan(x); }},
      {"atan", bound(Op::atan), CallAtan, [](W x, W) { return std::atan(x); }},
      {"ceil", bound(Op::ceil), CallCeil, [](W x, W) { return std::ceil(x); }},
      {"round", bound(Op::round), CallRoundEven, [](W x, W) { return std::nearbyint(x); }},
      {"trunc", bound(Op::trunc), CallTrunc, [](W x, W) { return std::trunc(x); }},
      {"sign", bound(Op::sign), CallSign, [](W x, W) { return x > 0   ? W(1)
                                                              : x < 0 ? W(-1)
                                                                      : x; }},
      {"pow", bound(Op::pow), CallPow, [](W x, W y) { return std::pow(x, y); }},
      {"min", bound(Op::min), CallMinNan, [](W x, W y) { return x != x || y != y ? x + y : std::min(x, y); }},
      {"max", bound(Op::max), CallMaxNan, [](W x, W y) { return x != x || y != y ? x + y : std::max(x, y); }},
  };
}

/// |got - exact| in units of the last place that a T near `exact` has; 0 when both are NaN or the same infinity.
template <class T>
double ulp_error(T got, Wider<T> exact) {
  if (exact != exact || got != got) return exact != exact && got != got ? 0 : INFINITY;
  const T rounded = static_cast<T>(exact);
  if (std::isinf(rounded) || std::isinf(got)) return got == rounded ? 0 : INFINITY;
  int exponent = 0;
  std::frexp(exact, &exponent);
  const int lowest = std::numeric_limits<T>::min_exponent;
  const Wider<T> ulp = std::ldexp(Wider<T>(1), std::max(exponent, lowest) - std::numeric_limits<T>::digits);
  return static_cast<double>(std::fabs(static_cast<Wider<T>>(got) - exact) / ulp);
}

template <class T>
T from_bits(std::uint64_t bits) {
  T x;
  std::memcpy(&x, &bits, sizeof(T));
  return x;
}

constexpr std::size_t kWidest = 64;  // lanes

/// Every exponent of both signs, NaN and infinities included, by an odd stride over all bit patterns.
template <class T>
std::vector<T> dense(std::size_t count) {
  const int bits = sizeof(T) * 8;
  const std::uint64_t stride = (bits == 32 ? (std::uint64_t{1} << 32) / count : ~std::uint64_t{0} / count) | 1;
  std::vector<T> x(count);
  const std::uint64_t first = heddle::test::sample_seed() % stride;
  for (std::size_t i = 0; i < count; ++i) x[i] = from_bits<T>(first + i * stride);
  return x;
}

/// Values around which functions change their formula, and their neighbours.
template <class T>
std::vector<T> edges() {
  using L = std::numeric_limits<T>;
  std::vector<T> x = {0,
                      L::min() * T(1.097),
                      L::denorm_min(),
                      L::min(),
                      L::max(),
                      L::infinity(),
                      L::quiet_NaN(),
                      0.5,
                      1,
                      2,
                      3,
                      4,
                      8.5,
                      9.1,
                      20,
                      88.5,
                      88.72284,
                      89,
                      104,
                      127.5,
                      128,
                      149,
                      150,
                      151,
                      160,
                      709.5,
                      710,
                      745,
                      746,
                      1023,
                      1024,
                      1074,
                      1075,
                      1100};
  for (T value : std::vector<T>(x)) {
    x.push_back(std::nextafter(value, L::infinity()));
    x.push_back(std::nextafter(value, -L::infinity()));
  }
  for (T value : std::vector<T>(x)) x.push_back(-value);
  return x;
}

/// Ordinary sizes, where mods live: dense in the bits alone leaves few points there.
template <class T>
std::vector<T> ordinary(std::size_t count, T size) {
  std::vector<T> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = size * (2 * static_cast<T>(i) / static_cast<T>(count) - 1);
  }
  return x;
}

template <class T>
void check(const std::vector<T>& xs, const std::vector<T>& ys) {
  std::vector<T> x = xs, y = ys;
  while (x.size() % kWidest != 0) x.push_back(1);
  y.resize(x.size(), 1);
  std::vector<T> got(x.size());
  std::vector<Wider<T>> exact(x.size());
  for (const Function<T>& function : functions<T>()) {
    for (std::size_t i = 0; i < x.size(); ++i) exact[i] = function.exact(x[i], y[i]);
    for (std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
      hwy::SetSupportedTargetsForTest(targets & -targets);
      std::fill(got.begin(), got.end(), std::numeric_limits<T>::quiet_NaN());
      function.call(x, y, got);
      hwy::SetSupportedTargetsForTest(0);
      double worst = 0;
      std::size_t where = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double error = ulp_error(got[i], exact[i]);
        if (error > worst) worst = error, where = i;
      }
      const std::string target = hwy::TargetName(targets & -targets);
      // Rounding to nearest alone is half a unit; an exactly rounded operation has the bound 0.
      const double most = function.ulp == 0 ? 0.5 : function.ulp;
      EXPECT_LE(worst, most) << function.name << " on " << target << " at x = " << x[where] << ", y = " << y[where]
                             << ": got " << got[where] << ", exact " << exact[where];
      testing::Test::RecordProperty(target + " " + function.name, std::to_string(worst));
    }
  }
}

template <class T>
void check_edges() {
  std::vector<T> x, y;
  for (T first : edges<T>()) {
    for (T second : edges<T>()) {
      x.push_back(first);
      y.push_back(second);
    }
  }
  check(x, y);
}

TEST(Math, EdgesF32) { check_edges<float>(); }
TEST(Math, EdgesF64) { check_edges<double>(); }

/// A quarter of the points by default: HEDDLE_TEST_SEED moves those of dense(). 2^25 points gave the same figures as 2^21 to
/// a tenth.
std::size_t points(int log2) { return std::size_t{1} << (heddle::test::takes_all() ? log2 : log2 - 2); }

TEST(Math, DenseF32) { check(dense<float>(points(21)), ordinary<float>(points(21), 10)); }
TEST(Math, DenseF64) { check(dense<double>(points(18)), ordinary<double>(points(18), 10)); }
TEST(Math, OrdinaryF32) { check(ordinary<float>(points(19), 110), dense<float>(points(19))); }
TEST(Math, OrdinaryF64) { check(ordinary<double>(points(18), 800), dense<double>(points(18))); }

/// A function that is constant from some argument on, on that argument's side.
template <class T>
struct Limit {
  const char* function;
  T from, value;
};

/// From where on the exact value rounds to the limit. (tanh(9) rounds to the f32 below 1, by 0.51 of its distance.)
template <class T>
std::vector<Limit<T>> limits() {
  constexpr bool kSingle = sizeof(T) == 4;
  return {{"tanh", kSingle ? 9 : 20, 1},      {"tanh", kSingle ? -9 : -20, -1},  {"erf", kSingle ? 4 : 6, 1},
          {"erf", kSingle ? -4 : -6, -1},     {"sigmoid", kSingle ? 18 : 38, 1}, {"sigmoid", kSingle ? -104 : -746, 0},
          {"erfc", kSingle ? 11 : 28, 0}, {"erfc", kSingle ? -4 : -6, 2},
          {"expm1", kSingle ? -18 : -38, -1}, {"exp", kSingle ? -104 : -746, 0}, {"exp2", kSingle ? -150 : -1075, 0}};
}

/// If the limit stays an ulp away, 1 - tanh^2 and the like are not zero, and their products grow without end.
template <class T>
void check_limits() {
  for (const Limit<T>& limit : limits<T>()) {
    std::vector<T> x = {limit.from};
    for (T size = limit.from; std::isfinite(size); size *= T(1.03)) x.push_back(size);
    while (x.size() % kWidest != 0) x.push_back(std::copysign(std::numeric_limits<T>::infinity(), limit.from));
    const std::vector<T> ones(x.size(), 1);
    std::vector<T> got(x.size());
    for (const Function<T>& function : functions<T>()) {
      if (std::string(function.name) != limit.function) continue;
      for (std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
        hwy::SetSupportedTargetsForTest(targets & -targets);
        function.call(x, ones, got);
        hwy::SetSupportedTargetsForTest(0);
        for (std::size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(got[i], limit.value) << function.name << "(" << x[i] << ") on "
                                         << hwy::TargetName(targets & -targets);
        }
      }
    }
  }
}

TEST(Math, LimitsAreReachedF32) { check_limits<float>(); }
TEST(Math, LimitsAreReachedF64) { check_limits<double>(); }

template <class T>
void check_zeros() {
  std::vector<T> x;
  for (std::size_t i = 0; i < kWidest / 2; ++i) x.push_back(T(0)), x.push_back(-T(0));
  const std::vector<T> ones(x.size(), 1);
  std::vector<T> got(x.size());
  for (const Function<T>& function : functions<T>()) {
    for (std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
      hwy::SetSupportedTargetsForTest(targets & -targets);
      function.call(x, ones, got);
      hwy::SetSupportedTargetsForTest(0);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const T exact = static_cast<T>(function.exact(x[i], 1));
        if (std::isnan(exact)) continue;  // has no sign
        ASSERT_EQ(std::signbit(got[i]), std::signbit(exact))
            << function.name << "(" << x[i] << ") on " << hwy::TargetName(targets & -targets);
      }
    }
  }
}

TEST(Math, ZerosKeepTheirSignF32) { check_zeros<float>(); }
TEST(Math, ZerosKeepTheirSignF64) { check_zeros<double>(); }

}  // namespace
}  // namespace heddle::cpu
#endif
