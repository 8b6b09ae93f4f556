// Coefficients of a linear model by least squares, none below 0.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <span>

namespace heddle::bench {

template <std::size_t N>
struct Observation {
  std::array<double, N> terms;
  double value;
};

/// Minimises the sum of ((terms . c - value) / value)^2 over c >= 0: the term that comes out most negative goes, until
/// none does. A term that is 0 everywhere gets 0.
template <std::size_t N>
std::array<double, N> least_squares(std::span<const Observation<N>> observations) {
  std::array<bool, N> in{};
  in.fill(true);
  for (;;) {
    // Normal equations of the terms that are in, each scaled to its largest entry; the rest are x = 0.
    std::array<std::array<double, N + 1>, N> m{};
    for (const Observation<N>& o : observations) {
      for (std::size_t i = 0; i < N; ++i) {
        for (std::size_t j = 0; j < N; ++j) m[i][j] += o.terms[i] * o.terms[j] / (o.value * o.value);
        m[i][N] += o.terms[i] / o.value;
      }
    }
    std::array<double, N> scale{};
    for (std::size_t i = 0; i < N; ++i) {
      in[i] = in[i] && m[i][i] > 0;
      scale[i] = in[i] ? 1 / std::sqrt(m[i][i]) : 1;
    }
    for (std::size_t i = 0; i < N; ++i) {
      for (std::size_t j = 0; j < N; ++j) m[i][j] = in[i] && in[j] ? m[i][j] * scale[i] * scale[j] : i == j ? 1 : 0;
      m[i][N] = in[i] ? m[i][N] * scale[i] : 0;
    }
    // Symmetric and positive: elimination needs no pivots.
    for (std::size_t p = 0; p < N; ++p) {
      for (std::size_t r = 0; r < N; ++r) {
        if (r == p) continue;
        const double factor = m[r][p] / m[p][p];
        for (std::size_t c = p; c <= N; ++c) m[r][c] -= factor * m[p][c];
      }
    }
    std::array<double, N> x{};
    std::size_t worst = 0;
    for (std::size_t i = 0; i < N; ++i) {
      x[i] = in[i] ? m[i][N] / m[i][i] * scale[i] : 0;
      if (x[i] / scale[i] < x[worst] / scale[worst]) worst = i;
    }
    if (x[worst] >= 0) return x;
    in[worst] = false;
  }
}

}  // namespace heddle::bench
