// f16 arithmetic, alone and in pairs. Sums and products of two f16 are rounded once: f32 holds them, or rounds them
// where a second rounding changes nothing. Multiply-adds go through f64.
#include <cmath>

#include "backend/amd/simulator/float_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

/// a * b + c for f16 values. The f64 sum is exact but for operands more than 2^13 apart; then it is moved off a tie, so
/// that the second rounding goes the right way.
float fused(float a, float b, float c) {
  const double product = static_cast<double>(a) * b, sum = product + c;
  const double error = (product - (sum - c)) + (c - (sum - (sum - c)));
  auto narrowed = static_cast<float>(sum);
  const double left = (sum - static_cast<double>(narrowed)) + error;
  // To odd: an f32 that is not exact gets its last bit set, towards the exact sum.
  if (left != 0 && !(std::bit_cast<std::uint32_t>(narrowed) & 1) && std::isfinite(narrowed)) {
    narrowed = std::nextafter(narrowed, left > 0 ? HUGE_VALF : -HUGE_VALF);
  }
  return narrowed;
}

template <auto F>
PackedF16 both(PackedF16 a, PackedF16 b) {
  return {F(a.low, b.low), F(a.high, b.high)};
}

float plus(float a, float b) { return a + b; }
float times(float a, float b) { return a * b; }
float larger(float a, float b) { return number_max(a, b); }
float smaller(float a, float b) { return number_min(a, b); }

void undefined_halves(VectorCall& c) {  // low halves from low halves, high from high
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) c.to_undefined |= c.undefined[s];
}

void undefined_pack(VectorCall& c) { c.to_undefined = {c.undefined[0].low, c.undefined[1].low}; }

void undefined_low(VectorCall& c) {
  std::uint64_t low = 0;
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) {
    low |= c.instruction.from[s].type == Type::kF16 ? c.undefined[s].low : c.undefined[s].any();
  }
  c.to_undefined = {low, low};
}

/// D = A.low * B.low + A.high * B.high + C
void dot2_f32_f16(VectorCall& c) {
  const Reader<PackedF16> a(c, 0), b(c, 1);
  const Reader<float> sum(c, 2);
  Writer<float> to(c);
  for (int l = 0; l < c.lanes; ++l) {
    to.put(l, __builtin_fmaf(a.get(l).high, b.get(l).high, __builtin_fmaf(a.get(l).low, b.get(l).low, sum.get(l))));
  }
}

constexpr Class kTrans = Class::kTranscendental;

constexpr VectorRow kRows[] = {
    {"v_add_f16", "h:hh", each_lane<[](F16 a, F16 b) { return F16{a.value + b.value}; }>, undefined_low},
    {"v_sub_f16", "h:hh", each_lane<[](F16 a, F16 b) { return F16{a.value - b.value}; }>, undefined_low},
    {"v_subrev_f16", "h:hh", each_lane<[](F16 a, F16 b) { return F16{b.value - a.value}; }>, undefined_low},
    {"v_mul_f16", "h:hh", each_lane<[](F16 a, F16 b) { return F16{a.value * b.value}; }>, undefined_low},
    {"v_min_f16", "h:hh", each_lane<[](F16 a, F16 b) { return F16{number_min(a.value, b.value)}; }>, undefined_low},
    {"v_max_f16", "h:hh", each_lane<[](F16 a, F16 b) { return F16{number_max(a.value, b.value)}; }>, undefined_low},
    {"v_fma_f16", "h:hhh", each_lane<[](F16 a, F16 b, F16 c) { return F16{fused(a.value, b.value, c.value)}; }>,
     undefined_low},
    {"v_fmac_f16", "h:hh=", each_lane<[](F16 a, F16 b, F16 c) { return F16{fused(a.value, b.value, c.value)}; }>,
     undefined_low},
    {"v_floor_f16", "h:h", each_lane<[](F16 a) { return F16{std::floor(a.value)}; }>, undefined_low},
    {"v_ceil_f16", "h:h", each_lane<[](F16 a) { return F16{std::ceil(a.value)}; }>, undefined_low},
    {"v_trunc_f16", "h:h", each_lane<[](F16 a) { return F16{std::trunc(a.value)}; }>, undefined_low},
    {"v_rndne_f16", "h:h", each_lane<[](F16 a) { return F16{std::nearbyint(a.value)}; }>, undefined_low},
    {"v_exp_f16", "h:h", each_lane<[](F16 a) { return F16{std::exp2(a.value)}; }>, undefined_low, kTrans},
    {"v_log_f16", "h:h", each_lane<[](F16 a) { return F16{std::log2(a.value)}; }>, undefined_low, kTrans},
    {"v_rcp_f16", "h:h", each_lane<[](F16 a) { return F16{1.0f / a.value}; }>, undefined_low, kTrans},
    {"v_sqrt_f16", "h:h", each_lane<[](F16 a) { return F16{std::sqrt(a.value)}; }>, undefined_low, kTrans},
    {"v_rsq_f16", "h:h", each_lane<[](F16 a) { return F16{1.0f / std::sqrt(a.value)}; }>, undefined_low, kTrans},
    {"v_pk_add_f16", "p:pp", each_lane<[](PackedF16 a, PackedF16 b) { return both<plus>(a, b); }>, undefined_halves},
    {"v_pk_mul_f16", "p:pp", each_lane<[](PackedF16 a, PackedF16 b) { return both<times>(a, b); }>, undefined_halves},
    {"v_pk_max_f16", "p:pp", each_lane<[](PackedF16 a, PackedF16 b) { return both<larger>(a, b); }>, undefined_halves},
    {"v_pk_min_f16", "p:pp", each_lane<[](PackedF16 a, PackedF16 b) { return both<smaller>(a, b); }>, undefined_halves},
    {"v_pk_fma_f16", "p:ppp", each_lane<[](PackedF16 a, PackedF16 b, PackedF16 c) {
       return PackedF16{fused(a.low, b.low, c.low), fused(a.high, b.high, c.high)};
     }>,
     undefined_halves},
    {"v_pk_fmac_f16", "p:pp=", each_lane<[](PackedF16 a, PackedF16 b, PackedF16 c) {
       return PackedF16{fused(a.low, b.low, c.low), fused(a.high, b.high, c.high)};
     }>,
     undefined_halves},
    {"v_pack_b32_f16", "i:hh", each_lane<[](std::uint32_t a, std::uint32_t b) { return (a & 0xffff) | b << 16; }>,
     undefined_pack},
    {"v_dot2_f32_f16", "f:ppf", dot2_f32_f16},
    {"v_dot2acc_f32_f16", "f:pp=", dot2_f32_f16},
    {"v_dot2c_f32_f16", "f:pp=", dot2_f32_f16},
};

}  // namespace

std::span<const VectorRow> half_rows() { return kRows; }

}  // namespace heddle::amd::simulator
