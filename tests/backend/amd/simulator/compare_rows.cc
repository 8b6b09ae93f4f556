// Comparisons: a bit for each lane. v_cmpx_* is the same operation, which writes exec; the decoder sees to that.
#include <cmath>

#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

// Bits of v_cmp_class's second source.
template <class T, class Bits, int kMantissa>
bool is_of_class(T, Bits bits, std::uint32_t classes) {
  const Bits exponent_mask = (Bits{1} << (sizeof(Bits) * 8 - 1 - kMantissa)) - 1;
  const Bits mantissa = bits & ((Bits{1} << kMantissa) - 1), exponent = bits >> kMantissa & exponent_mask;
  const bool negative = bits >> (sizeof(Bits) * 8 - 1);
  if (exponent == exponent_mask && mantissa != 0) {
    const bool quiet = mantissa >> (kMantissa - 1);
    return classes >> (quiet ? 1 : 0) & 1;
  }
  // -infinity, -normal, -denormal, -0, +0, +denormal, +normal, +infinity: bits 2 to 9
  const int kind = exponent == exponent_mask ? 0 : exponent != 0 ? 1 : mantissa != 0 ? 2 : 3;
  return classes >> (negative ? 2 + kind : 9 - kind) & 1;
}

void undefined_low(VectorCall& c) {
  const std::uint64_t low = c.undefined[0].low | c.undefined[1].low;
  c.to_undefined = {low, low};
}

#define HEDDLE_FLOAT_COMPARES(suffix, signature, T, value, rule)                                                     \
  {"v_cmp_lt_" suffix, signature, each_lane<[](T a, T b) { return a value < b value; }>, rule},                      \
      {"v_cmp_eq_" suffix, signature, each_lane<[](T a, T b) { return a value == b value; }>, rule},                 \
      {"v_cmp_le_" suffix, signature, each_lane<[](T a, T b) { return a value <= b value; }>, rule},                 \
      {"v_cmp_gt_" suffix, signature, each_lane<[](T a, T b) { return (a value > b value); }>, rule},                \
      {"v_cmp_lg_" suffix, signature, each_lane<[](T a, T b) { return (a value < b value || a value > b value); }>,  \
       rule},                                                                                                        \
      {"v_cmp_ge_" suffix, signature, each_lane<[](T a, T b) { return (a value >= b value); }>, rule},               \
      {"v_cmp_o_" suffix, signature, each_lane<[](T a, T b) { return !std::isunordered(a value, b value); }>, rule}, \
      {"v_cmp_u_" suffix, signature, each_lane<[](T a, T b) { return std::isunordered(a value, b value) != 0; }>,    \
       rule},                                                                                                        \
      {"v_cmp_nge_" suffix, signature, each_lane<[](T a, T b) { return (!(a value >= b value)); }>, rule},           \
      {"v_cmp_nlg_" suffix, signature,                                                                               \
       each_lane<[](T a, T b) { return (!(a value < b value || a value > b value)); }>, rule},                       \
      {"v_cmp_ngt_" suffix, signature, each_lane<[](T a, T b) { return (!(a value > b value)); }>, rule},            \
      {"v_cmp_nle_" suffix, signature, each_lane<[](T a, T b) { return !(a value <= b value); }>, rule},             \
      {"v_cmp_neq_" suffix, signature, each_lane<[](T a, T b) { return !(a value == b value); }>, rule}, {           \
    "v_cmp_nlt_" suffix, signature, each_lane<[](T a, T b) { return !(a value < b value); }>, rule                   \
  }

#define HEDDLE_INTEGER_COMPARES(suffix, signature, T, rule)                                \
  {"v_cmp_lt_" suffix, signature, each_lane<[](T a, T b) { return a < b; }>, rule},        \
      {"v_cmp_eq_" suffix, signature, each_lane<[](T a, T b) { return a == b; }>, rule},   \
      {"v_cmp_le_" suffix, signature, each_lane<[](T a, T b) { return a <= b; }>, rule},   \
      {"v_cmp_gt_" suffix, signature, each_lane<[](T a, T b) { return (a > b); }>, rule},  \
      {"v_cmp_ne_" suffix, signature, each_lane<[](T a, T b) { return a != b; }>, rule}, { \
    "v_cmp_ge_" suffix, signature, each_lane<[](T a, T b) { return (a >= b); }>, rule      \
  }

constexpr VectorRow kRows[] = {
    HEDDLE_FLOAT_COMPARES("f32", "m:ff", float, , nullptr),
    HEDDLE_FLOAT_COMPARES("f64", "m:dd", double, , nullptr),
    HEDDLE_FLOAT_COMPARES("f16", "m:hh", F16, .value, undefined_low),
    HEDDLE_INTEGER_COMPARES("u32", "m:ii", std::uint32_t, nullptr),
    HEDDLE_INTEGER_COMPARES("i32", "m:ii", std::int32_t, nullptr),
    HEDDLE_INTEGER_COMPARES("u64", "m:ll", std::uint64_t, nullptr),
    HEDDLE_INTEGER_COMPARES("i64", "m:ll", std::int64_t, nullptr),
    HEDDLE_INTEGER_COMPARES("u16", "m:ss", std::uint16_t, undefined_low),
    HEDDLE_INTEGER_COMPARES("i16", "m:ss", std::int16_t, undefined_low),
    {"v_cmp_class_f32", "m:fi", each_lane<[](float a, std::uint32_t classes) {
       return is_of_class<float, std::uint32_t, 23>(a, std::bit_cast<std::uint32_t>(a), classes);
     }>},
    {"v_cmp_class_f64", "m:di", each_lane<[](double a, std::uint32_t classes) {
       return is_of_class<double, std::uint64_t, 52>(a, std::bit_cast<std::uint64_t>(a), classes);
     }>},
    {"v_cmp_class_f16", "m:hi", each_lane<[](std::uint16_t a, std::uint32_t classes) {
       return is_of_class<float, std::uint16_t, 10>(0, a, classes);
     }>},
};

#undef HEDDLE_FLOAT_COMPARES
#undef HEDDLE_INTEGER_COMPARES

}  // namespace

std::span<const VectorRow> compare_rows() { return kRows; }

}  // namespace heddle::amd::simulator
