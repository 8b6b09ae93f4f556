// f32 arithmetic.
#include <algorithm>
#include <cmath>

#include "backend/amd/simulator/float_rules.h"
#include "backend/amd/simulator/undefined_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

/// The transcendental unit and the reciprocals take denormals for zero and return none.
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

float median(float a, float b, float c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return number_min(number_min(a, b), c);
  return number_max(number_min(a, b), number_min(number_max(a, b), c));
}

float fraction(float x) {
  const float result = x - std::floor(x);
  return std::isnan(result) ? result : std::min(result, 0x1.fffffep-1f);
}

double turns(float x) { return (static_cast<double>(x) - std::floor(static_cast<double>(x))) * 6.283185307179586; }

// v_fma_mix: each source is f32, or the half that op_sel names where op_sel_hi is set.
float mixed(const VectorCall& c, std::size_t s, int l) {
  const Instruction& i = c.instruction;
  const std::uint32_t bits = c.from[s][l];
  float value = std::bit_cast<float>(bits);
  if (i.op_sel_hi >> s & 1) value = half_to_float(i.op_sel >> s & 1 ? bits >> 16 : bits & 0xffff);
  if (i.from[s].absolute) value = std::fabs(value);
  return i.from[s].negate ? -value : value;
}

template <bool kHalfResult>
void fma_mix(VectorCall& c) {
  for (int l = 0; l < c.lanes; ++l) {
    const float result = __builtin_fmaf(mixed(c, 0, l), mixed(c, 1, l), mixed(c, 2, l));
    c.to[l] = kHalfResult ? float_to_half(result) : std::bit_cast<std::uint32_t>(result);
  }
}

void undefined_mix(VectorCall& c) {
  std::uint64_t any = 0;
  for (std::size_t s = 0; s < 3; ++s) {
    const bool half = c.instruction.op_sel_hi >> s & 1;
    any |= half ? (c.instruction.op_sel >> s & 1 ? c.undefined[s].high : c.undefined[s].low) : c.undefined[s].any();
  }
  c.to_undefined = {any, any};
}

constexpr Class kTrans = Class::kTranscendental;

// Two sources and the old destination; the literal of fmamk and fmaak stands where the text has it.
constexpr VectorRow kRows[] = {
    {"v_add_f32", "f:ff", each_lane<[](float a, float b) { return a + b; }>},
    {"v_sub_f32", "f:ff", each_lane<[](float a, float b) { return a - b; }>},
    {"v_subrev_f32", "f:ff", each_lane<[](float a, float b) { return b - a; }>},
    {"v_mul_f32", "f:ff", each_lane<[](float a, float b) { return a * b; }>},
    {"v_mul_legacy_f32", "f:ff", each_lane<[](float a, float b) { return a == 0.0f || b == 0.0f ? 0.0f : a * b; }>},
    {"v_min_f32", "f:ff", each_lane<[](float a, float b) { return number_min(a, b); }>},
    {"v_max_f32", "f:ff", each_lane<[](float a, float b) { return number_max(a, b); }>},
    {"v_fma_f32", "f:fff", each_lane<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>},
    {"v_fmac_f32", "f:ff=", each_lane<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>},
    {"v_fmamk_f32", "f:fff", each_lane<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>},
    {"v_fmaak_f32", "f:fff", each_lane<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }>},
    {"v_mad_f32", "f:fff", each_lane<[](float a, float b, float c) { return flushed(flushed(a * b) + c); }>},
    {"v_mac_f32", "f:ff=", each_lane<[](float a, float b, float c) { return flushed(flushed(a * b) + c); }>},
    {"v_madmk_f32", "f:fff", each_lane<[](float a, float b, float c) { return flushed(flushed(a * b) + c); }>},
    {"v_madak_f32", "f:fff", each_lane<[](float a, float b, float c) { return flushed(flushed(a * b) + c); }>},
    {"v_min3_f32", "f:fff", each_lane<[](float a, float b, float c) { return number_min(number_min(a, b), c); }>},
    {"v_max3_f32", "f:fff", each_lane<[](float a, float b, float c) { return number_max(number_max(a, b), c); }>},
    {"v_med3_f32", "f:fff", each_lane<[](float a, float b, float c) { return median(a, b, c); }>},
    {"v_maxmin_f32", "f:fff", each_lane<[](float a, float b, float c) { return number_min(number_max(a, b), c); }>},
    {"v_minmax_f32", "f:fff", each_lane<[](float a, float b, float c) { return number_max(number_min(a, b), c); }>},
    {"v_floor_f32", "f:f", each_lane<[](float a) { return std::floor(a); }>},
    {"v_ceil_f32", "f:f", each_lane<[](float a) { return std::ceil(a); }>},
    {"v_trunc_f32", "f:f", each_lane<[](float a) { return std::trunc(a); }>},
    {"v_rndne_f32", "f:f", each_lane<[](float a) { return std::nearbyint(a); }>},
    {"v_fract_f32", "f:f", each_lane<[](float a) { return fraction(a); }>},
    {"v_ldexp_f32", "f:fi", each_lane<[](float a, std::int32_t e) { return std::ldexp(a, e); }>},
    {"v_frexp_mant_f32", "f:f", each_lane<[](float a) {
       int e;
       return std::isfinite(a) ? std::frexp(a, &e) : a;
     }>},
    {"v_frexp_exp_i32_f32", "i:f", each_lane<[](float a) {
       int e = 0;
       return std::isfinite(a) ? (static_cast<void>(std::frexp(a, &e)), e) : 0;
     }>},
    {"v_exp_f32", "f:f", each_lane<[](float a) { return flushed(std::exp2(a)); }>, nullptr, kTrans},
    {"v_log_f32", "f:f", each_lane<[](float a) { return std::log2(flushed(a)); }>, nullptr, kTrans},
    {"v_rcp_f32", "f:f", each_lane<[](float a) { return flushed(1.0f / flushed(a)); }>, nullptr, kTrans},
    {"v_rcp_iflag_f32", "f:f", each_lane<[](float a) { return flushed(1.0f / flushed(a)); }>, nullptr, kTrans},
    {"v_rsq_f32", "f:f",
     each_lane<[](float a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(flushed(a)))); }>, nullptr,
     kTrans},
    {"v_sqrt_f32", "f:f", each_lane<[](float a) { return std::sqrt(flushed(a)); }>, nullptr, kTrans},
    {"v_sin_f32", "f:f", each_lane<[](float a) { return static_cast<float>(std::sin(turns(a))); }>, nullptr, kTrans},
    {"v_cos_f32", "f:f", each_lane<[](float a) { return static_cast<float>(std::cos(turns(a))); }>, nullptr, kTrans},
    {"v_div_scale_f32", "fm:fff", divide_scale<float>},
    {"v_div_fmas_f32", "f:fffm",
     each_lane<[](float a, float b, float c, Bit scaled) { return divide_fmas(a, b, c, scaled.value); }>},
    {"v_div_fixup_f32", "f:fff", each_lane<[](float a, float b, float c) { return divide_fixup(a, b, c); }>},
    {"v_fma_mix_f32", "f:xxx", fma_mix<false>, undefined_mix},
    {"v_fma_mixlo_f16", "h:xxx", fma_mix<true>, undefined_mix},
    {"v_fma_mixhi_f16", "h:xxx", fma_mix<true>, undefined_mix},
    {"v_pk_add_f32", "w:ww", packed_f32<[](float a, float b, float) { return a + b; }, 2>, undefined_by_register},
    {"v_pk_mul_f32", "w:ww", packed_f32<[](float a, float b, float) { return a * b; }, 2>, undefined_by_register},
    {"v_pk_fma_f32", "w:www", packed_f32<[](float a, float b, float c) { return __builtin_fmaf(a, b, c); }, 3>,
     undefined_by_register},
};

}  // namespace

std::span<const VectorRow> float_rows() { return kRows; }

}  // namespace heddle::amd::simulator
