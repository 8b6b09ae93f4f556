// f64 arithmetic.
#include <algorithm>
#include <cmath>

#include "backend/amd/simulator/float_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

constexpr Class kTrans = Class::kTranscendental;

constexpr VectorRow kRows[] = {
    {"v_add_f64", "d:dd", each_lane<[](double a, double b) { return a + b; }>},
    {"v_mul_f64", "d:dd", each_lane<[](double a, double b) { return a * b; }>},
    {"v_min_f64", "d:dd", each_lane<[](double a, double b) { return number_min(a, b); }>},
    {"v_max_f64", "d:dd", each_lane<[](double a, double b) { return number_max(a, b); }>},
    {"v_fma_f64", "d:ddd", each_lane<[](double a, double b, double c) { return __builtin_fma(a, b, c); }>},
    {"v_fmac_f64", "d:dd=", each_lane<[](double a, double b, double c) { return __builtin_fma(a, b, c); }>},
    {"v_floor_f64", "d:d", each_lane<[](double a) { return std::floor(a); }>},
    {"v_ceil_f64", "d:d", each_lane<[](double a) { return std::ceil(a); }>},
    {"v_trunc_f64", "d:d", each_lane<[](double a) { return std::trunc(a); }>},
    {"v_rndne_f64", "d:d", each_lane<[](double a) { return std::nearbyint(a); }>},
    {"v_fract_f64", "d:d", each_lane<[](double a) { return std::min(a - std::floor(a), 0x1.fffffffffffffp-1); }>},
    {"v_ldexp_f64", "d:di", each_lane<[](double a, std::int32_t e) { return std::ldexp(a, e); }>},
    {"v_frexp_mant_f64", "d:d", each_lane<[](double a) {
       int e;
       return std::isfinite(a) ? std::frexp(a, &e) : a;
     }>},
    {"v_frexp_exp_i32_f64", "i:d", each_lane<[](double a) {
       int e = 0;
       return std::isfinite(a) ? (static_cast<void>(std::frexp(a, &e)), e) : 0;
     }>},
    {"v_rcp_f64", "d:d", each_lane<[](double a) { return 1 / a; }>, nullptr, kTrans},
    {"v_rsq_f64", "d:d", each_lane<[](double a) { return 1 / std::sqrt(a); }>, nullptr, kTrans},
    {"v_sqrt_f64", "d:d", each_lane<[](double a) { return std::sqrt(a); }>, nullptr, kTrans},
    {"v_div_scale_f64", "dm:ddd", divide_scale<double>},
    {"v_div_fmas_f64", "d:dddm",
     each_lane<[](double a, double b, double c, Bit scaled) { return divide_fmas(a, b, c, scaled.value); }>},
    {"v_div_fixup_f64", "d:ddd", each_lane<[](double a, double b, double c) { return divide_fixup(a, b, c); }>},
};

}  // namespace

std::span<const VectorRow> double_rows() { return kRows; }

}  // namespace heddle::amd::simulator
