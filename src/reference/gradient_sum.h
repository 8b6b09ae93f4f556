// A gradient as it is summed up.
#pragma once

#include <span>
#include <vector>

#include "heddle/tensor.h"
#include "reference/dot.h"

namespace heddle::reference {

/// One summand, or a factor of summands, and what its errors are judged by (reference_backward.h).
struct Term {
  double value = 0, magnitude = 0, floor = 0;
};

/// f64, row-major, of the shape of what it is the gradient of. magnitude and floor are empty unless asked for.
struct Gradient {
  Tensor value, magnitude, floor;
};

class GradientSum {
 public:
  GradientSum(const Dims& shape, bool judged);

  const Dims& shape() const { return shape_; }
  void add(std::int64_t offset, const Term& term);
  /// factor * row at `offset` and the elements after it.
  void add(std::int64_t offset, const Term& factor, std::span<const double> row);
  Gradient finish() const;

 private:
  Dims shape_;
  std::vector<Sum> value_;
  std::vector<double> magnitude_, floor_;  // empty unless judged
};

}  // namespace heddle::reference
