// Sums of products.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

namespace heddle::reference {

// Sums are exact beyond float64 where the machine has more (x86: 64 bits), so that f64 results are judged by more than
// their own rounding errors.
using Sum = long double;

struct Dot {
  double sum, terms;  // terms: of absolute values
};

inline Dot dot(std::span<const double> x, const double* y) {
  Sum sum = 0;
  double terms = 0;
  for (std::size_t d = 0; d < x.size(); ++d) {
    sum += static_cast<Sum>(x[d]) * y[d];
    terms += std::abs(x[d] * y[d]);
  }
  return {static_cast<double>(sum), terms};
}

}  // namespace heddle::reference
