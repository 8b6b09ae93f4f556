#include "problem/capture_bounds.h"

#include <algorithm>
#include <type_traits>

#include "base/element.h"

namespace heddle::problem {
namespace {

// Value of a read of the element: integers keep their low 32 bits.
double read_value(const ConstTensorView& view, std::int64_t offset) {
  return base::with_storage_type(view.dtype, [&]<class T>(std::type_identity<T>) -> double {
    const T x = base::load_raw<T>(view.data, offset);
    if constexpr (std::is_integral_v<T>) return static_cast<std::int32_t>(x);
    return base::decode(x);
  });
}

void widen(expr::Range& range, const ConstTensorView& view, int axis, std::int64_t offset) {
  if (axis == view.rank()) {
    const double x = read_value(view, offset);
    range.lo = std::min(range.lo, x);
    range.hi = std::max(range.hi, x);
    return;
  }
  const std::int64_t elements = view.strides[axis] == 0 ? 1 : view.shape[axis];  // along the axis
  for (std::int64_t i = 0; i < elements; ++i) widen(range, view, axis + 1, offset + i * view.strides[axis]);
}

}  // namespace

expr::Range WholeCaptureBounds::bounds(const expr::CaptureDecl& capture, std::span<const expr::Range>) const {
  const ConstTensorView& view = bindings_.captures.at(capture.name);
  const ExprType type = expr::read_type(capture.dtype);
  const bool readable = view.device.kind == DeviceKind::cpu && view.count() > 0;
  if (type == ExprType::f32 || !readable) return expr::Range::any(type);
  auto [found, fresh] = scanned_.try_emplace(capture.name);
  if (fresh) {
    found->second = {.lo = std::numeric_limits<double>::infinity(), .hi = -std::numeric_limits<double>::infinity()};
    widen(found->second, view, 0, 0);
  }
  return found->second;
}

const Dims& WholeCaptureBounds::shape(const expr::CaptureDecl& capture) const {
  return bindings_.captures.at(capture.name).shape;
}

}  // namespace heddle::problem
