// f32 in scalar registers (gfx12).
#include <cmath>
#include <limits>

#include "backend/amd/simulator/float_rules.h"
#include "backend/amd/simulator/scalar.h"

namespace heddle::amd::simulator {
namespace {

using U64 = std::uint64_t;
using Call = ScalarCall&;

float f(U64 bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }
U64 bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

template <class T>
U64 converted(float x) {
  if (std::isnan(x)) return 0;
  const double lowest = std::numeric_limits<T>::min(), highest = std::numeric_limits<T>::max();
  const double value = std::trunc(static_cast<double>(x));
  return static_cast<std::uint32_t>(static_cast<T>(value < lowest ? lowest : value > highest ? highest : value));
}

constexpr ScalarRule kCompare = ScalarRule::kCompare;

#define HEDDLE_COMPARE(name, ...)        \
  {"s_cmp_" name "_f32", ":ff",          \
   [](Call c) -> U64 {                   \
     const float a = f(c.a), b = f(c.b); \
     c.scc = __VA_ARGS__;                \
     return 0;                           \
   },                                    \
   kCompare}

constexpr ScalarRow kRows[] = {
    {"s_add_f32", "f:ff", [](Call c) -> U64 { return bits_of(f(c.a) + f(c.b)); }},
    {"s_sub_f32", "f:ff", [](Call c) -> U64 { return bits_of(f(c.a) - f(c.b)); }},
    {"s_mul_f32", "f:ff", [](Call c) -> U64 { return bits_of(f(c.a) * f(c.b)); }},
    {"s_min_f32", "f:ff", [](Call c) -> U64 { return bits_of(number_min(f(c.a), f(c.b))); }},
    {"s_max_f32", "f:ff", [](Call c) -> U64 { return bits_of(number_max(f(c.a), f(c.b))); }},
    {"s_fmac_f32", "f:ff=", [](Call c) -> U64 { return bits_of(std::fma(f(c.a), f(c.b), f(c.c))); }},
    {"s_fmamk_f32", "f:fff", [](Call c) -> U64 { return bits_of(std::fma(f(c.a), f(c.b), f(c.c))); }},
    {"s_fmaak_f32", "f:fff", [](Call c) -> U64 { return bits_of(std::fma(f(c.a), f(c.b), f(c.c))); }},
    {"s_ceil_f32", "f:f", [](Call c) -> U64 { return bits_of(std::ceil(f(c.a))); }},
    {"s_floor_f32", "f:f", [](Call c) -> U64 { return bits_of(std::floor(f(c.a))); }},
    {"s_trunc_f32", "f:f", [](Call c) -> U64 { return bits_of(std::trunc(f(c.a))); }},
    {"s_rndne_f32", "f:f", [](Call c) -> U64 { return bits_of(std::nearbyint(f(c.a))); }},
    {"s_cvt_f32_i32", "f:i", [](Call c) -> U64 { return bits_of(static_cast<float>(static_cast<std::int32_t>(c.a))); }},
    {"s_cvt_f32_u32", "f:i",
     [](Call c) -> U64 { return bits_of(static_cast<float>(static_cast<std::uint32_t>(c.a))); }},
    {"s_cvt_i32_f32", "i:f", [](Call c) -> U64 { return converted<std::int32_t>(f(c.a)); }},
    {"s_cvt_u32_f32", "i:f", [](Call c) -> U64 { return converted<std::uint32_t>(f(c.a)); }},
    {"s_cvt_f16_f32", "i:f", [](Call c) -> U64 { return float_to_half(f(c.a)); }},
    {"s_cvt_f32_f16", "f:i",
     [](Call c) -> U64 { return bits_of(half_to_float(static_cast<std::uint32_t>(c.a) & 0xffff)); }},
    HEDDLE_COMPARE("lt", a < b),
    HEDDLE_COMPARE("eq", a == b),
    HEDDLE_COMPARE("le", a <= b),
    HEDDLE_COMPARE("gt", a > b),
    HEDDLE_COMPARE("lg", a<b || a> b),
    HEDDLE_COMPARE("ge", a >= b),
    HEDDLE_COMPARE("o", !std::isunordered(a, b)),
    HEDDLE_COMPARE("u", std::isunordered(a, b)),
    HEDDLE_COMPARE("nge", !(a >= b)),
    HEDDLE_COMPARE("nlg", !(a < b || a > b)),
    HEDDLE_COMPARE("ngt", !(a > b)),
    HEDDLE_COMPARE("nle", !(a <= b)),
    HEDDLE_COMPARE("neq", !(a == b)),
    HEDDLE_COMPARE("nlt", !(a < b)),
};

#undef HEDDLE_COMPARE

}  // namespace

std::span<const ScalarRow> scalar_float_rows() { return kRows; }

}  // namespace heddle::amd::simulator
