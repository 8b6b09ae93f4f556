// tanh by pieces, for targets that look coefficients up in registers: polynomials of degree 5 over quarters of octaves,
// made by the compiler. Relative error 4e-9 before rounding.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace heddle::cpu {

/// The piece of |x| is found by its leading bits: exponent and two of the mantissa. The lowest piece holds everything
/// below its end, the highest ends past the point from where on tanh is 1. A piece's polynomial is in
/// |x| - origin; entries stand at the piece's number modulo 32, as look-ups take it.
struct TanhTable {
  static constexpr int kShift = 21;
  static constexpr std::int32_t kFirst = 491, kLast = 520;  // up to 2^-4; [8, 10)
  static constexpr int kTerms = 6;
  alignas(64) std::array<float, 32> origin{};
  alignas(64) std::array<std::array<float, 32>, kTerms> coefficient{};
};

namespace tanh_table {

constexpr double tanh(double x) {
  // e^2x by Taylor at a 1024th, squared back.
  const double z = 2 * x / 1024;
  double power = 1;
  for (int k = 12; k >= 1; --k) power = 1 + power * z / k;
  for (int i = 0; i < 10; ++i) power *= power;
  return 1 - 2 / (power + 1);
}

constexpr double start(std::int32_t piece) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(piece) << TanhTable::kShift);
}

/// Interpolation at the Chebyshev nodes of [0, width], as coefficients of powers.
constexpr std::array<double, TanhTable::kTerms> interpolate(double origin, double width) {
  constexpr int kTerms = TanhTable::kTerms;
  constexpr std::array<double, kTerms> kCosines = {0.9659258262890683,  0.7071067811865476,  0.2588190451025207,
                                                   -0.2588190451025207, -0.7071067811865476, -0.9659258262890683};
  std::array<double, kTerms> node{}, difference{}, sum{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    node[i] = width * (1 - kCosines[i]) / 2;
    difference[i] = tanh(origin + node[i]);
  }
  for (std::size_t order = 1; order < kTerms; ++order) {
    for (std::size_t i = kTerms - 1; i >= order; --i) {
      difference[i] = (difference[i] - difference[i - 1]) / (node[i] - node[i - order]);
    }
  }
  // Newton's form to powers: sum = sum * (x - node) + difference.
  for (std::size_t i = kTerms; i-- > 0;) {
    for (std::size_t k = kTerms - 1; k >= 1; --k) sum[k] = sum[k - 1] - node[i] * sum[k];
    sum[0] = difference[i] - node[i] * sum[0];
  }
  return sum;
}

constexpr TanhTable make() {
  TanhTable table;
  for (std::int32_t piece = TanhTable::kFirst; piece <= TanhTable::kLast; ++piece) {
    const auto entry = static_cast<std::size_t>(piece % 32);
    const bool lowest = piece == TanhTable::kFirst;
    const double origin = lowest ? 0 : start(piece);
    // Around 0 the series, so that the error stays small against tanh itself.
    const std::array<double, TanhTable::kTerms> sum =
        lowest ? std::array<double, TanhTable::kTerms>{0, 1, 0, -1.0 / 3, 0, 2.0 / 15}
               : interpolate(origin, start(piece + 1) - origin);
    table.origin[entry] = static_cast<float>(origin);
    for (std::size_t k = 0; k < TanhTable::kTerms; ++k) table.coefficient[k][entry] = static_cast<float>(sum[k]);
  }
  return table;
}

}  // namespace tanh_table

inline constexpr TanhTable kTanhTable = tanh_table::make();

}  // namespace heddle::cpu
