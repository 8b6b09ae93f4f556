#include "backend/device_text/bound_values.h"

#include <bit>
#include <cstdint>

namespace heddle::device_text::test {
namespace {

std::uint64_t words_of(const ParamValue& value, expr::Precision reals) {
  if (const double* real = std::get_if<double>(&value)) {
    if (reals == expr::Precision::f64) return std::bit_cast<std::uint64_t>(*real);
    return std::bit_cast<unsigned>(static_cast<float>(*real));
  }
  if (const std::int32_t* integer = std::get_if<std::int32_t>(&value)) return static_cast<unsigned>(*integer);
  return std::get<bool>(value) ? 1 : 0;
}

}  // namespace

shared::ModValues bound_values(const ModLayout& layout, const Bindings& bindings) {
  shared::ModValues values{};
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    const std::uint64_t words = words_of(bindings.params.at(layout.params[i].first), layout.reals);
    values.params[i] = static_cast<unsigned>(words);
    values.upper_params[i] = static_cast<unsigned>(words >> 32);
  }
  for (std::size_t i = 0; i < layout.captures.size(); ++i) {
    const ConstTensorView& view = bindings.captures.at(layout.captures[i].name);
    values.captures[i].data = view.data;
    for (int axis = 0; axis < view.rank(); ++axis) {
      values.captures[i].stride[axis] = view.strides[axis];
      values.captures[i].extent[axis] = static_cast<int>(view.shape[axis]);
    }
  }
  return values;
}

}  // namespace heddle::device_text::test
