#include "reference/mod_slopes.h"

#include <algorithm>
#include <unordered_map>

#include "expr/differentiate.h"
#include "expr/node.h"

namespace heddle::reference {

using expr::Interpreter;

std::optional<std::int64_t> ReadSlope::offset(const expr::Element& element, double slope) const {
  std::int64_t offset = 0;
  for (int axis = 0; axis < shape_.size(); ++axis) {
    const std::int64_t extent = shape_[axis];
    const std::int64_t index = std::get<std::int32_t>(indices_[static_cast<std::size_t>(axis)](element));
    if (extent == 0 || (slope == 0 && (index < 0 || index >= extent))) return {};
    offset = offset * extent + std::clamp<std::int64_t>(index, 0, extent - 1);
  }
  return offset;
}

namespace {

bool is_constant(const Expr& e) { return e.node()->op == expr::Op::constant; }

/// |x| + |y| for x + y, and so on: rounding the terms of a sum errs by their magnitudes.
class Terms {
 public:
  Expr of(const Expr& e) {
    const auto known = known_.find(e.node());
    if (known != known_.end()) return known->second;
    return known_.emplace(e.node(), make(e)).first->second;
  }

 private:
  Expr make(const Expr& e) {
    const expr::Node& node = *e.node();
    const auto x = [&](int i) { return of(expr::operand(node, i)); };
    switch (node.op) {
      case expr::Op::add:
      case expr::Op::sub:
        return x(0) + x(1);
      case expr::Op::mul:
        return x(0) * x(1);
      case expr::Op::div:
        return x(0) / abs(expr::operand(node, 1));
      case expr::Op::neg:
      case expr::Op::abs:
        return x(0);
      case expr::Op::where:
        return where(expr::operand(node, 0), x(1), x(2));
      default:
        return abs(e);
    }
  }
  std::unordered_map<const expr::Node*, Expr> known_;
};

}  // namespace

ModSlopes::ModSlopes(const Expr& mod, const Bindings& bindings, const ModReads& wanted, expr::Precision arithmetic,
                     expr::Precision given) {
  if (mod.empty()) return;
  const auto interpreter = [&](const Expr& e) { return Interpreter(e, bindings, arithmetic, given); };
  const auto terms = [&](const Expr& slope) {
    return is_constant(slope) ? std::nullopt : std::optional(interpreter(Terms().of(slope)));
  };
  const Expr slope = expr::d_score(mod, std::nullopt);
  score_.emplace(interpreter(slope));
  score_terms_ = terms(slope);
  if (wanted.captures) {
    for (const expr::CaptureGradient& gradient : expr::d_captures(mod, std::nullopt)) {
      std::vector<Interpreter> indices;
      for (const Expr& index : gradient.indices) indices.push_back(interpreter(index));
      const std::string& name = gradient.capture.name;
      reads_.emplace_back(name, false, bindings.captures.at(name).shape, std::move(indices),
                          interpreter(gradient.gradient), terms(gradient.gradient));
    }
  }
  if (wanted.params) {
    for (const expr::ParamGradient& gradient : expr::d_params(mod, std::nullopt)) {
      reads_.emplace_back(gradient.name, true, Dims{}, std::vector<Interpreter>(), interpreter(gradient.gradient),
                          terms(gradient.gradient));
    }
  }
}

}  // namespace heddle::reference
