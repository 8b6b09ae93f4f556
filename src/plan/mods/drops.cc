#include "plan/mods/drops.h"

#include <array>
#include <cmath>
#include <limits>

#include "expr/comparisons.h"
#include "expr/node.h"
#include "expr/simplify.h"
#include "shared/philox.h"

namespace heddle::plan {
namespace {

using expr::Leaf;
using expr::LeafSet;
using expr::Node;
using expr::Op;

/// One value for all elements of a sequence's head.
bool is_uniform(const Expr& e) {
  return !e.node()->uses.intersects({Leaf::score, Leaf::q_idx, Leaf::kv_idx, Leaf::q_token, Leaf::kv_token});
}

bool is_zero(const Expr& e) { return e.node()->op == Op::constant && e.node()->f32() == 0; }

bool is_infinite_or_nan(const Expr& e) { return e.node()->op == Op::constant && !std::isfinite(e.node()->f32()); }

/// An element has `kept` where the condition is true, or false, and 0 elsewhere.
struct Selection {
  Expr condition;
  bool where_true;
  Expr kept;
};

std::optional<Selection> selection_of(const Expr& weight) {
  const Node& node = *weight.node();
  if (node.op == Op::to_f32 && node.operands[0]->type == ExprType::boolean) {
    return Selection{expr::operand(node, 0), true, Expr(1.0)};
  }
  // A factor of 0 marks a dropped element.
  if (node.op == Op::mul || node.op == Op::div) {
    for (const std::size_t i : {0, 1}) {
      const Expr factor = expr::operand(node, 1 - i);
      if (i == 1 && node.op == Op::div) break;
      if (factor.node()->op != Op::constant || is_infinite_or_nan(factor)) continue;
      if (node.op == Op::div && is_zero(factor)) continue;
      std::optional<Selection> selection = selection_of(expr::operand(node, i));
      if (!selection) continue;
      selection->kept = expr::build(node.op, std::array{selection->kept, factor});
      return selection;
    }
  }
  if (node.op != Op::where) return {};
  if (is_zero(expr::operand(node, 2))) return Selection{expr::operand(node, 0), true, expr::operand(node, 1)};
  if (is_zero(expr::operand(node, 1))) return Selection{expr::operand(node, 0), false, expr::operand(node, 2)};
  return {};
}

/// The draw of each element, of a uniform seed.
bool is_draw(const Expr& e) {
  const Node& node = *e.node();
  if (node.op != Op::random_uniform || !is_uniform(expr::operand(node, 0))) return false;
  constexpr std::array kIndices = {Leaf::b, Leaf::h, Leaf::q_idx, Leaf::kv_idx};
  for (std::size_t i = 0; i < kIndices.size(); ++i) {
    const Node& index = *node.operands[i + 1];
    if (index.op != Op::leaf || index.leaf() != kIndices[i]) return false;
  }
  return true;
}

/// draw < p and draw <= p, as k below the first one that is not; all k are, or none is, where this is an end of the
/// range. `of_nan`: where p is NaN.
Expr first_not_below(const Expr& p, bool or_equal, double of_nan) {
  constexpr double kCount = shared::kRandomUniformCount;
  const Expr scaled = p * kCount;  // exact, or infinite
  const Expr first = or_equal ? floor(scaled) + 1.0 : -floor(-scaled);
  const Expr inside = max(min(first, kCount), 0.0);
  return to_i32(where(p <= std::numeric_limits<double>::infinity(), inside, of_nan));
}

}  // namespace

std::optional<Drops> drops_of(const Expr& weight) {
  std::optional<Selection> selection = selection_of(weight);
  if (!selection || !is_uniform(selection->kept) || is_infinite_or_nan(selection->kept)) return {};
  while (selection->condition.node()->op == Op::logical_not) {
    selection->condition = expr::operand(*selection->condition.node(), 0);
    selection->where_true = !selection->where_true;
  }
  const Node& node = *selection->condition.node();
  Op compare = node.op;
  if (compare != Op::lt && compare != Op::le && compare != Op::gt && compare != Op::ge) return {};
  Expr draw = expr::operand(node, 0), p = expr::operand(node, 1);
  if (!is_draw(draw)) {
    std::swap(draw, p);
    compare = expr::mirrored(compare);
  }
  if (!is_draw(draw) || !is_uniform(p)) return {};

  const bool below = compare == Op::lt || compare == Op::le;  // the condition is true below the threshold
  const bool or_equal = compare == Op::le || compare == Op::gt;
  const Expr first = first_not_below(p, or_equal, below ? 0.0 : double{shared::kRandomUniformCount});
  const Expr threshold = below == selection->where_true ? Expr(-1) - first : first;
  return Drops{expr::operand(*draw.node(), 0), expr::simplify(threshold, expr::Precision::f32),
               expr::simplify(selection->kept, expr::Precision::f32)};
}

}  // namespace heddle::plan
