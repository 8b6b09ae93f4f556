// Rules of floating-point operations that f32 and f64 share: maxima of numbers and NaNs, the steps of a division.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {

/// A NaN loses against a number; +0 is more than -0.
inline float number_max(float a, float b) {
  const auto both = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) & std::bit_cast<std::uint32_t>(b));
  return a == b ? both : (a > b || b != b) ? a : b;
}
inline float number_min(float a, float b) {
  const auto either = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) | std::bit_cast<std::uint32_t>(b));
  return a == b ? either : (a < b || b != b) ? a : b;
}
inline double number_max(double a, double b) {
  const auto both = std::bit_cast<double>(std::bit_cast<std::uint64_t>(a) & std::bit_cast<std::uint64_t>(b));
  return a == b ? both : (a > b || b != b) ? a : b;
}
inline double number_min(double a, double b) {
  const auto either = std::bit_cast<double>(std::bit_cast<std::uint64_t>(a) | std::bit_cast<std::uint64_t>(b));
  return a == b ? either : (a < b || b != b) ? a : b;
}

template <class T>
struct FloatFormat {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
  static constexpr int kLargestExponent = sizeof(T) == 4 ? 255 : 2047;
  static int exponent(T x) { return static_cast<int>(std::bit_cast<Bits>(x) >> kMantissa) & kLargestExponent; }
  static bool is_denormal(T x) { return exponent(x) == 0 && x != 0; }
};

/// v_div_scale: brings numerator or denominator of a division into a range where its Newton steps are exact; the mask
/// says where v_div_fmas has to undo it. Sources: the value to scale, the denominator, the numerator.
template <class T>
T scaled_for_division(T value, T denominator, T numerator, bool& undo) {
  using Format = FloatFormat<T>;
  constexpr int kStep = sizeof(T) == 4 ? 64 : 128, kFar = sizeof(T) == 4 ? 96 : 768, kSmall = sizeof(T) == 4 ? 23 : 53;
  undo = false;
  if (numerator == 0 || denominator == 0) return std::numeric_limits<T>::quiet_NaN();
  const bool is_denominator =
      std::bit_cast<typename Format::Bits>(value) == std::bit_cast<typename Format::Bits>(denominator);
  const bool small_inverse = Format::is_denormal(1 / denominator);
  if (Format::exponent(numerator) - Format::exponent(denominator) >= kFar) {
    undo = true;
    return is_denominator ? std::ldexp(value, kStep) : value;
  }
  if (Format::is_denormal(denominator)) return std::ldexp(value, kStep);
  if (small_inverse && Format::is_denormal(numerator / denominator)) {
    undo = true;
    return is_denominator ? std::ldexp(value, kStep) : value;
  }
  if (small_inverse) return std::ldexp(value, -kStep);
  if (Format::is_denormal(numerator / denominator)) {
    undo = true;
    return is_denominator ? value : std::ldexp(value, kStep);
  }
  return Format::exponent(numerator) <= kSmall ? std::ldexp(value, kStep) : value;
}

template <class T>
void divide_scale(VectorCall& c) {
  const Reader<T> value(c, 0), denominator(c, 1), numerator(c, 2);
  Writer<T> to(c);
  c.to_mask = 0;
  for (int l = 0; l < c.lanes; ++l) {
    bool undo = false;
    to.put(l, scaled_for_division(value.get(l), denominator.get(l), numerator.get(l), undo));
    c.to_mask |= static_cast<std::uint64_t>(undo) << l;
  }
}

/// v_div_fmas: the last step, and back from the range that v_div_scale chose.
template <class T>
T divide_fmas(T a, T b, T c, bool undo) {
  const T result = std::fma(a, b, c);
  if (!undo) return result;
  constexpr int kStep = sizeof(T) == 4 ? 64 : 128;
  return std::ldexp(result, FloatFormat<T>::exponent(c) > FloatFormat<T>::kLargestExponent / 2 ? kStep : -kStep);
}

/// v_div_fixup: the quotient, or what the special cases of a division ask for.
template <class T>
T divide_fixup(T quotient, T denominator, T numerator) {
  using Format = FloatFormat<T>;
  const T sign = std::signbit(denominator) != std::signbit(numerator) ? T{-1} : T{1};
  const T infinity = std::numeric_limits<T>::infinity();
  if (std::isnan(numerator)) return numerator;
  if (std::isnan(denominator)) return denominator;
  if (denominator == 0 && numerator == 0) return std::numeric_limits<T>::quiet_NaN();
  if (std::isinf(denominator) && std::isinf(numerator)) return std::numeric_limits<T>::quiet_NaN();
  if (denominator == 0 || std::isinf(numerator)) return std::copysign(infinity, sign);
  if (std::isinf(denominator) || numerator == 0) return std::copysign(T{0}, sign);
  constexpr int kUnderflow = sizeof(T) == 4 ? -150 : -1075;
  if (Format::exponent(numerator) - Format::exponent(denominator) < kUnderflow) return std::copysign(T{0}, sign);
  return std::copysign(quotient, sign);
}

/// Packed f32: the same operation on both registers.
template <auto F, int kSources>
void packed_f32(VectorCall& c) {
  const std::size_t last = kSources - 1;
  for (const bool high : {false, true}) {
    const auto& from = high ? c.from_high : c.from;
    std::uint32_t* to = high ? c.to_high : c.to;
    const std::uint32_t *a = from[0], *b = from[1], *d = from[last];
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) {
      to[l] = std::bit_cast<std::uint32_t>(
          F(std::bit_cast<float>(a[l]), std::bit_cast<float>(b[l]), std::bit_cast<float>(d[l])));
    }
  }
}

}  // namespace heddle::amd::simulator
