// From one type to another. To integers: towards zero, saturating, NaN to 0.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/amd/simulator/undefined_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

using U = std::uint32_t;
using S = std::int32_t;

template <class To, class From>
To saturated(From x) {
  if (std::isnan(x)) return 0;
  if (x <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (x >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  return static_cast<To>(x);
}

void undefined_low(VectorCall& c) {
  const std::uint64_t low = c.undefined[0].low;
  c.to_undefined = {low, low};
}

/// A pair from two sources.
void undefined_pair(VectorCall& c) { c.to_undefined = {c.undefined[0].any(), c.undefined[1].any()}; }

template <int kByte>
float byte_as_float(U x) {
  return static_cast<float>(x >> (8 * kByte) & 0xff);
}

template <int kByte>
void undefined_byte(VectorCall& c) {
  const std::uint64_t half = kByte < 2 ? c.undefined[0].low : c.undefined[0].high;
  c.to_undefined = {half, half};
}

std::uint16_t to_i16(float x) { return static_cast<std::uint16_t>(saturated<std::int16_t>(x)); }

constexpr VectorRow kRows[] = {
    {"v_cvt_f32_i32", "f:i", each_lane<[](S a) { return static_cast<float>(a); }>},
    {"v_cvt_f32_u32", "f:i", each_lane<[](U a) { return static_cast<float>(a); }>},
    {"v_cvt_i32_f32", "i:f", each_lane<[](float a) { return saturated<S>(a); }>},
    {"v_cvt_u32_f32", "i:f", each_lane<[](float a) { return saturated<U>(a); }>},
    {"v_cvt_nearest_i32_f32", "i:f", each_lane<[](float a) { return saturated<S>(std::floor(a + 0.5f)); }>},
    {"v_cvt_floor_i32_f32", "i:f", each_lane<[](float a) { return saturated<S>(std::floor(a)); }>},
    {"v_cvt_f16_f32", "h:f", each_lane<[](float a) { return F16{a}; }>},
    {"v_cvt_f32_f16", "f:h", each_lane<[](F16 a) { return a.value; }>, undefined_low},
    {"v_cvt_pk_rtz_f16_f32", "p:ff",
     each_lane<[](float a, float b) { return float_to_half_toward_zero(a) | float_to_half_toward_zero(b) << 16; }>,
     undefined_pair},
    {"v_cvt_f16_u16", "h:s", each_lane<[](std::uint16_t a) { return F16{static_cast<float>(a)}; }>, undefined_low},
    {"v_cvt_f16_i16", "h:s", each_lane<[](std::int16_t a) { return F16{static_cast<float>(a)}; }>, undefined_low},
    {"v_cvt_u16_f16", "s:h", each_lane<[](F16 a) { return saturated<std::uint16_t>(a.value); }>, undefined_low},
    {"v_cvt_i16_f16", "s:h", each_lane<[](F16 a) { return to_i16(a.value); }>, undefined_low},
    {"v_cvt_f32_ubyte0", "f:i", each_lane<[](U a) { return byte_as_float<0>(a); }>, undefined_byte<0>},
    {"v_cvt_f32_ubyte1", "f:i", each_lane<[](U a) { return byte_as_float<1>(a); }>, undefined_byte<1>},
    {"v_cvt_f32_ubyte2", "f:i", each_lane<[](U a) { return byte_as_float<2>(a); }>, undefined_byte<2>},
    {"v_cvt_f32_ubyte3", "f:i", each_lane<[](U a) { return byte_as_float<3>(a); }>, undefined_byte<3>},
    {"v_cvt_f64_f32", "d:f", each_lane<[](float a) { return static_cast<double>(a); }>},
    {"v_cvt_f32_f64", "f:d", each_lane<[](double a) { return static_cast<float>(a); }>},
    {"v_cvt_f64_i32", "d:i", each_lane<[](S a) { return static_cast<double>(a); }>},
    {"v_cvt_f64_u32", "d:i", each_lane<[](U a) { return static_cast<double>(a); }>},
    {"v_cvt_i32_f64", "i:d", each_lane<[](double a) { return saturated<S>(a); }>},
    {"v_cvt_u32_f64", "i:d", each_lane<[](double a) { return saturated<U>(a); }>},
    {"v_cvt_pk_u16_u32", "q:ii", each_lane<[](U a, U b) { return std::min(a, 0xffffu) | std::min(b, 0xffffu) << 16; }>,
     undefined_pair},
    {"v_cvt_pk_i16_i32", "q:ii", each_lane<[](S a, S b) {
       return (static_cast<U>(std::clamp(a, -32768, 32767)) & 0xffff) | static_cast<U>(std::clamp(b, -32768, 32767))
                                                                            << 16;
     }>,
     undefined_pair},
};

}  // namespace

std::span<const VectorRow> conversion_rows() { return kRows; }

}  // namespace heddle::amd::simulator
