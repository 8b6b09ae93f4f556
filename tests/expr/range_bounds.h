// Exact bounds of captures for tests of range analysis: looks at every element asked about.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "expr/ranges.h"

namespace heddle::test {

class ExactBounds : public expr::CaptureBounds {
 public:
  explicit ExactBounds(const std::map<std::string, ConstTensorView>& captures) : captures_(captures) {}

  expr::Range bounds(const expr::CaptureDecl& capture, std::span<const expr::Range> indices) const override {
    const ConstTensorView& view = captures_.at(capture.name);
    expr::Range range = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), false};
    Dims index;
    for (const expr::Range& axis : indices) index.push_back(static_cast<std::int64_t>(axis.lo));
    while (true) {
      include(element(view, index), range);
      int axis = view.rank() - 1;
      for (; axis >= 0; --axis) {
        const expr::Range& along = indices[static_cast<std::size_t>(axis)];
        if (++index[axis] <= static_cast<std::int64_t>(along.hi)) break;
        index[axis] = static_cast<std::int64_t>(along.lo);
      }
      if (axis < 0) return range;
    }
  }
  const Dims& shape(const expr::CaptureDecl& capture) const override { return captures_.at(capture.name).shape; }

 private:
  static double element(const ConstTensorView& view, const Dims& index) {
    if (view.dtype == DType::u32)
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(get_element(view, index)));
    if (view.dtype != DType::i64 && view.dtype != DType::u64) return get_element(view, index);
    std::int64_t offset = 0;
    for (int axis = 0; axis < view.rank(); ++axis) offset += index[axis] * view.strides[axis];
    return static_cast<std::int32_t>(static_cast<const std::int64_t*>(view.data)[offset]);
  }
  static void include(double x, expr::Range& range) {
    if (std::isnan(x)) {
      range.nan = true;
      return;
    }
    range.lo = std::min(range.lo, x);
    range.hi = std::max(range.hi, x);
  }

  const std::map<std::string, ConstTensorView>& captures_;
};

}  // namespace heddle::test
