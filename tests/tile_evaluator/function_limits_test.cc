// Functions of mods and their derivatives at the ends of the numbers: zeros, subnormal and huge scores, infinities. The
// tile evaluator in f32 and f64, on every SIMD target, against the slopes written out by hand in long double.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "tile_evaluator/tile_runs.h"
#include "expr/differentiate.h"

namespace heddle::cpu {
namespace {

using expr::Precision;
using Wide = long double;

struct Function {
  const char* text;
  std::function<Wide(Wide)> value, slope;
};

Wide sigmoid(Wide x) { return 1 / (1 + std::exp(-x)); }
Wide sech_squared(Wide x) { return std::fabs(x) > 1000 ? 0 : 1 / (std::cosh(x) * std::cosh(x)); }
Wide softplus(Wide x) { return std::max(x, Wide(0)) + std::log1p(std::exp(-std::fabs(x))); }
Wide normal_density(Wide x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<Wide>); }
Wide normal_share(Wide x) { return std::erfc(-x / std::numbers::sqrt2_v<Wide>) / 2; }
constexpr Wide kGelu = 0.79788456080286535588L, kCube = 0.044715L;
Wide gelu_inside(Wide x) { return kGelu * (x + kCube * x * x * x); }

// x^3 and the like overflow long before x does: the slope of what saturates behind them is 0.
std::vector<Function> functions() {
  return {
      {"tanh(score)", [](Wide x) { return std::tanh(x); }, sech_squared},
      {"1.0 - tanh(score) * tanh(score)", sech_squared, [](Wide x) { return -2 * std::tanh(x) * sech_squared(x); }},
      {"20.0 * tanh(score / 20.0)", [](Wide x) { return 20 * std::tanh(x / 20); },
       [](Wide x) { return sech_squared(x / 20); }},
      {"tanh(score * score * score)", [](Wide x) { return std::tanh(x * x * x); },
       [](Wide x) { return std::fabs(x) > 100 ? 0 : 3 * x * x * sech_squared(x * x * x); }},
      {"sigmoid(score)", sigmoid, [](Wide x) { return sigmoid(x) * sigmoid(-x); }},
      {"sigmoid(score * score * score)", [](Wide x) { return sigmoid(x * x * x); },
       [](Wide x) { return std::fabs(x) > 100 ? 0 : 3 * x * x * sigmoid(x * x * x) * sigmoid(-x * x * x); }},
      {"erf(score)", [](Wide x) { return std::erf(x); },
       [](Wide x) { return 2 * std::numbers::inv_sqrtpi_v<Wide> * std::exp(-x * x); }},
      {"erf(score * score * score)", [](Wide x) { return std::erf(x * x * x); },
       [](Wide x) {
         return std::fabs(x) > 100 ? 0
                                   : 6 * x * x * std::numbers::inv_sqrtpi_v<Wide> * std::exp(-x * x * x * x * x * x);
       }},
      {"erfc(score)", [](Wide x) { return std::erfc(x); },
       [](Wide x) { return -2 * std::numbers::inv_sqrtpi_v<Wide> * std::exp(-x * x); }},
      {"atan(score)", [](Wide x) { return std::atan(x); }, [](Wide x) { return 1 / (1 + x * x); }},
      {"atan(score * score * score)", [](Wide x) { return std::atan(x * x * x); },
       [](Wide x) { return std::fabs(x) > 1e10L ? 3 / x / x / x / x : 3 * x * x / (1 + x * x * x * x * x * x); }},
      {"exp(score)", [](Wide x) { return std::exp(x); }, [](Wide x) { return std::exp(x); }},
      {"exp2(score)", [](Wide x) { return std::exp2(x); },
       [](Wide x) { return std::exp2(x) * std::numbers::ln2_v<Wide>; }},
      {"expm1(score)", [](Wide x) { return std::expm1(x); }, [](Wide x) { return std::exp(x); }},
      {"exp(-(score * score))", [](Wide x) { return std::exp(-x * x); },
       [](Wide x) { return std::fabs(x) > 1000 ? 0 : -2 * x * std::exp(-x * x); }},
      {"exp(-(score * score * score * score))", [](Wide x) { return std::exp(-x * x * x * x); },
       [](Wide x) { return std::fabs(x) > 1000 ? 0 : -4 * x * x * x * std::exp(-x * x * x * x); }},
      {"relu(score)", [](Wide x) { return std::max(x, Wide(0)); }, [](Wide x) { return x > 0   ? 1
                                                                                       : x < 0 ? 0
                                                                                               : 0.5L; }},
      {"softplus(score)", softplus, sigmoid},
      {"silu(score)", [](Wide x) { return x * sigmoid(x); },
       [](Wide x) { return sigmoid(x) + x * sigmoid(x) * sigmoid(-x); }},
      {"score / (1.0 + exp(-score))", [](Wide x) { return x * sigmoid(x); },
       [](Wide x) { return sigmoid(x) + x * sigmoid(x) * sigmoid(-x); }},
      {"1.0 / (1.0 + exp(-score))", sigmoid, [](Wide x) { return sigmoid(x) * sigmoid(-x); }},
      {"gelu(score)", [](Wide x) { return x * normal_share(x); },
       [](Wide x) { return normal_share(x) + x * normal_density(x); }},
      {"gelu_tanh(score)", [](Wide x) { return x / 2 * (1 + std::tanh(gelu_inside(x))); },
       [](Wide x) {
         return (1 + std::tanh(gelu_inside(x))) / 2 +
                (std::fabs(x) > 100 ? 0 : x / 2 * sech_squared(gelu_inside(x)) * kGelu * (1 + 3 * kCube * x * x));
       }},
      {"score * tanh(softplus(score))", [](Wide x) { return x * std::tanh(softplus(x)); },
       [](Wide x) {
         return std::tanh(softplus(x)) + (std::fabs(x) > 1000 ? 0 : x * sech_squared(softplus(x)) * sigmoid(x));
       }},
      {"sqrt(score)", [](Wide x) { return std::sqrt(x); }, [](Wide x) { return 0.5L / std::sqrt(x); }},
      {"rsqrt(score)", [](Wide x) { return 1 / std::sqrt(x); }, [](Wide x) { return -0.5L / std::sqrt(x) / x; }},
      {"rsqrt(1.0 + score * score)", [](Wide x) { return 1 / std::hypot(Wide(1), x); },
       [](Wide x) { return -x / std::pow(std::hypot(Wide(1), x), Wide(3)); }},
      {"log(score)", [](Wide x) { return std::log(x); }, [](Wide x) { return 1 / x; }},
      {"log2(score)", [](Wide x) { return std::log2(x); }, [](Wide x) { return 1 / x / std::numbers::ln2_v<Wide>; }},
      {"log1p(score)", [](Wide x) { return std::log1p(x); }, [](Wide x) { return 1 / (1 + x); }},
      {"log1p(exp(-abs(score)))", [](Wide x) { return std::log1p(std::exp(-std::fabs(x))); },
       [](Wide x) { return x == 0 ? 0 : std::copysign(sigmoid(-std::fabs(x)), -x); }},
      {"pow(score, 2.5)", [](Wide x) { return std::pow(x, 2.5L); }, [](Wide x) { return 2.5L * std::pow(x, 1.5L); }},
      {"pow(score, 0.5)", [](Wide x) { return std::pow(x, 0.5L); }, [](Wide x) { return 0.5L * std::pow(x, -0.5L); }},
      {"pow(score, -1.5)", [](Wide x) { return std::pow(x, -1.5L); },
       [](Wide x) { return -1.5L * std::pow(x, -2.5L); }},
      {"pow(2.0, score)", [](Wide x) { return std::exp2(x); },
       [](Wide x) { return std::exp2(x) * std::numbers::ln2_v<Wide>; }},
      {"1.0 / score", [](Wide x) { return 1 / x; }, [](Wide x) { return -1 / x / x; }},
      {"sin(score)", [](Wide x) { return std::sin(x); }, [](Wide x) { return std::cos(x); }},
      {"cos(score)", [](Wide x) { return std::cos(x); }, [](Wide x) { return -std::sin(x); }},
      {"tan(score)", [](Wide x) { return std::tan(x); }, [](Wide x) { return 1 + std::tan(x) * std::tan(x); }},
      {"score % 3.0", [](Wide x) { return std::fmod(x, Wide(3)) + (std::fmod(x, Wide(3)) < 0 ? 3 : 0); },
       [](Wide) { return 1; }},
      {"abs(score)", [](Wide x) { return std::fabs(x); }, [](Wide x) { return x > 0   ? 1
                                                                              : x < 0 ? -1
                                                                                      : 0; }},
      {"clip(score, -1.5, 2.5)", [](Wide x) { return std::min(std::max(x, -1.5L), 2.5L); },
       [](Wide x) { return x > -1.5L && x < 2.5L ? 1 : 0; }},
  };
}

template <class T>
std::vector<double> scores() {
  using L = std::numeric_limits<T>;
  std::vector<double> all = {0, L::denorm_min(), L::min() / 2, L::min(), L::epsilon(), L::max(), L::max() / 2};
  for (const double x : {1e-30, 1e-10, 1e-4, 0.1,  0.5,  0.9,  1.0,  3.0,   5.0,   5.5,   7.0,   8.9,   9.0,   9.5,
                         16.5,  17.5,  30.0, 60.0, 87.0, 88.5, 90.0, 100.0, 104.0, 300.0, 600.0, 709.0, 746.0, 1000.0,
                         1e6,   1e12,  1e13, 1e15, 1e19, 2e19, 1e20, 1e30,  3e38,  1e100, 1e154, 2e154, 1e200, 1e300}) {
    if (x <= static_cast<double>(L::max())) all.push_back(static_cast<double>(static_cast<T>(x)));
  }
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; ++i) all.push_back(-all[i]);
  all.push_back(L::quiet_NaN());
  return all;
}

/// Relative to the largest of 1 and the exact value: what is below is not told from 0.
template <class T>
bool is_near(double got, Wide exact, double tolerance) {
  const auto rounded = static_cast<T>(exact);
  if (std::isnan(rounded)) return std::isnan(got);
  if (std::isinf(rounded)) return got == static_cast<double>(rounded);
  return std::fabs(got - exact) <= tolerance * std::max(Wide(1), std::fabs(exact));
}

/// `exact` of the tile's values of `e` at all scores.
template <class T>
void check(const Expr& e, const std::string& what, const Function& function, bool slopes) {
  constexpr Precision kPrecision = sizeof(T) == 4 ? Precision::f32 : Precision::f64;
  const double tolerance = 32 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const std::vector<double> x = scores<T>();
  test::Setting setting;
  setting.at = {.b = 0,
                .h = 0,
                .sequence = {.q_len = 1, .kv_len = 1000},
                .q_first = 0,
                .kv_first = 0,
                .rows = 1,
                .columns = static_cast<int>(x.size())};
  setting.scores = x;
  for (const std::int64_t target : test::targets()) {
    const test::OnTarget on(target);
    const std::vector<expr::Value> got = test::run_tile(e, kPrecision, {}, setting);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // If the value itself is NaN or infinite, the row is lost, and the slope means nothing.
      const auto value = static_cast<T>(function.value(x[i]));
      if (slopes && !std::isfinite(value)) continue;
      const Wide exact = slopes ? function.slope(x[i]) : function.value(x[i]);
      EXPECT_TRUE(is_near<T>(std::get<double>(got[i]), exact, tolerance))
          << what << " at " << x[i] << " in f" << sizeof(T) * 8 << " on " << hwy::TargetName(target) << ": got "
          << std::get<double>(got[i]) << ", exact " << exact;
    }
  }
}

template <class T>
void check_all() {
  constexpr Precision kPrecision = sizeof(T) == 4 ? Precision::f32 : Precision::f64;
  for (const Function& function : functions()) {
    const Expr e = parse(function.text);
    check<T>(e, function.text, function, false);
    check<T>(expr::d_score(e, kPrecision), std::string("the slope of ") + function.text, function, true);
    check<T>(expr::d_score(e, std::nullopt), std::string("the slope, unsimplified, of ") + function.text, function,
             true);
  }
}

TEST(FunctionLimits, ValuesAndSlopesF32) { check_all<float>(); }
TEST(FunctionLimits, ValuesAndSlopesF64) { check_all<double>(); }

}  // namespace
}  // namespace heddle::cpu
