#include "reference/gradient_sum.h"

#include <algorithm>

#include "reference/row_bounds.h"

namespace heddle::reference {
namespace {

template <class T>
Tensor tensor_of(const Dims& shape, const std::vector<T>& values) {
  Tensor tensor = Tensor::empty(DType::f64, shape);
  std::ranges::transform(values, static_cast<double*>(tensor.data()), [](T x) { return static_cast<double>(x); });
  return tensor;
}

}  // namespace

GradientSum::GradientSum(const Dims& shape, bool judged) : shape_(shape) {
  const auto count = static_cast<std::size_t>(element_count(shape));
  value_.resize(count);
  if (!judged) return;
  magnitude_.resize(count);
  floor_.resize(count);
}

void GradientSum::add(std::int64_t offset, const Term& term) {
  const auto at = static_cast<std::size_t>(offset);
  value_[at] += term.value;
  if (magnitude_.empty()) return;
  magnitude_[at] += term.magnitude;
  floor_[at] += term.floor;
}

void GradientSum::add(std::int64_t offset, const Term& factor, std::span<const double> row) {
  const auto first = static_cast<std::size_t>(offset);
  for (std::size_t d = 0; d < row.size(); ++d) value_[first + d] += static_cast<Sum>(factor.value) * row[d];
  if (magnitude_.empty()) return;
  for (std::size_t d = 0; d < row.size(); ++d) {
    magnitude_[first + d] += times_size(factor.magnitude, row[d]);
    floor_[first + d] += times_size(factor.floor, row[d]);
  }
}

Gradient GradientSum::finish() const {
  if (magnitude_.empty()) return {tensor_of(shape_, value_), {}, {}};
  return {tensor_of(shape_, value_), tensor_of(shape_, magnitude_), tensor_of(shape_, floor_)};
}

}  // namespace heddle::reference
