#include "backend/reference/mod_slopes.h"

#include <algorithm>

#include "expr/differentiate.h"

namespace heddle::reference {

using expr::Interpreter;

std::optional<std::int64_t> ReadSlope::place(const expr::Element& element, double slope) const {
  std::int64_t place = 0;
  for (int axis = 0; axis < shape_.size(); ++axis) {
    const std::int64_t extent = shape_[axis];
    const std::int64_t index = std::get<std::int32_t>(indices_[static_cast<std::size_t>(axis)](element));
    if (extent == 0 || (slope == 0 && (index < 0 || index >= extent))) return {};
    place = place * extent + std::clamp<std::int64_t>(index, 0, extent - 1);
  }
  return place;
}

ModSlopes::ModSlopes(const Expr& mod, const Bindings& bindings, const ModReads& wanted, expr::Precision arithmetic,
                     expr::Precision given) {
  if (mod.empty()) return;
  const auto interpreter = [&](const Expr& e) { return Interpreter(e, bindings, arithmetic, given); };
  score_.emplace(interpreter(expr::d_score(mod, std::nullopt)));
  if (wanted.captures) {
    for (const expr::CaptureGradient& gradient : expr::d_captures(mod, std::nullopt)) {
      std::vector<Interpreter> indices;
      for (const Expr& index : gradient.indices) indices.push_back(interpreter(index));
      const std::string& name = gradient.capture.name;
      reads_.emplace_back(name, false, bindings.captures.at(name).shape, std::move(indices),
                          interpreter(gradient.gradient));
    }
  }
  if (wanted.params) {
    for (const expr::ParamGradient& gradient : expr::d_params(mod, std::nullopt)) {
      reads_.emplace_back(gradient.name, true, Dims{}, std::vector<Interpreter>(), interpreter(gradient.gradient));
    }
  }
}

}  // namespace heddle::reference
