// Finds the linear form of a score mod, which kernels fold into the scale and the exponent's offset.
#include <cmath>
#include <unordered_map>

#include "expr/simplify.h"

namespace heddle::expr {
namespace {

/// scale * score + offset; an empty offset is zero.
using Linear = std::optional<LinearInScore>;

Expr negative(const Expr& x) { return x.empty() ? x : -x; }

Expr sum(const Expr& x, const Expr& y) {
  if (x.empty()) return y;
  return y.empty() ? x : x + y;
}

Linear of_product(const Node& node, const LinearInScore& x, const LinearInScore& y) {
  const std::size_t other = x.scale != 0 ? 1 : 0;
  const LinearInScore& with_score = other == 1 ? x : y;
  const Expr factor = operand(node, other);
  if (factor.node()->op != Op::constant) return {};
  return LinearInScore{with_score.scale * factor.node()->f32(),
                       with_score.offset.empty() ? Expr() : with_score.offset * factor};
}

Linear of_quotient(const Node& node, const LinearInScore& x) {
  const Expr divisor = operand(node, 1);
  if (divisor.node()->op != Op::constant) return {};
  return LinearInScore{x.scale / divisor.node()->f32(), x.offset.empty() ? Expr() : x.offset / divisor};
}

/// Both branches must scale the score alike. (A condition that reads it is not linear, and has ended the search.)
Linear of_where(const Node& node, const LinearInScore& yes, const LinearInScore& no) {
  if (yes.scale != no.scale) return {};
  if (yes.offset.empty() && no.offset.empty()) return yes;
  const auto given = [](const Expr& offset) { return offset.empty() ? Expr(0.0) : offset; };
  return LinearInScore{yes.scale, where(operand(node, 0), given(yes.offset), given(no.offset))};
}

Linear of_operation(const Node& node, std::span<const LinearInScore> x) {
  switch (node.op) {
    case Op::leaf:
      return LinearInScore{1, {}};
    case Op::add:
      return LinearInScore{x[0].scale + x[1].scale, sum(x[0].offset, x[1].offset)};
    case Op::sub:
      return LinearInScore{x[0].scale - x[1].scale, sum(x[0].offset, negative(x[1].offset))};
    case Op::neg:
      return LinearInScore{-x[0].scale, negative(x[0].offset)};
    case Op::mul:
      return of_product(node, x[0], x[1]);
    case Op::div:
      return of_quotient(node, x[0]);
    case Op::where:
      return of_where(node, x[1], x[2]);
    default:
      return {};
  }
}

}  // namespace

Linear linear_in_score(const Expr& score_mod) {
  std::unordered_map<const Node*, LinearInScore> found;  // of the nodes that read the score
  std::vector<LinearInScore> operands;
  for (const Node* node : post_order(score_mod)) {
    if (!node->uses.has(Leaf::score)) continue;
    operands.clear();
    for (const auto& below : node->operands) {
      const bool reads_score = below->uses.has(Leaf::score);
      operands.push_back(reads_score ? found.at(below.get()) : LinearInScore{0, Expr(below)});
    }
    const Linear linear = of_operation(*node, operands);
    // Without a scale the score would be multiplied by zero, and a NaN in it come through.
    if (!linear || linear->scale == 0 || !std::isfinite(linear->scale)) return {};
    found.emplace(node, *linear);
  }
  const auto root = found.find(score_mod.node());
  return root == found.end() ? Linear() : root->second;
}

}  // namespace heddle::expr
