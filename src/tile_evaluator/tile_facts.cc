#include "tile_evaluator/tile_facts.h"

namespace heddle::cpu {
namespace {

using expr::Leaf;
using expr::Node;
using expr::Op;

Extent join(Extent x, Extent y) {
  if (x == Extent::scalar || x == y) return y;
  return y == Extent::scalar ? x : Extent::tile;
}

/// The extent of a linear value. Exact although values wrap: they wrap the same everywhere.
Extent linear_extent(std::uint32_t per_row, std::uint32_t per_column) {
  if (per_row == 0 && per_column == 0) return Extent::scalar;
  if (per_row + per_column == 0) return Extent::diagonal;
  if (per_column == 0) return Extent::row;
  return per_row == 0 ? Extent::column : Extent::tile;
}

Fact learn_leaf(Leaf leaf) {
  Fact fact;
  fact.linear = leaf != Leaf::score;
  if (leaf == Leaf::q_idx || leaf == Leaf::q_token) fact.per_row = 1;
  if (leaf == Leaf::kv_idx || leaf == Leaf::kv_token) fact.per_column = 1;
  fact.extent = fact.linear ? linear_extent(fact.per_row, fact.per_column) : Extent::tile;
  return fact;
}

}  // namespace

Facts::Facts(const Expr& root, bool diagonal_comparisons) : diagonal_comparisons_(diagonal_comparisons) {
  for (const Node* node : expr::post_order(root)) {
    facts_[node] = learn(*node);
    for (const auto& below : node->operands) ++facts_[below.get()].users;
  }
}

bool Facts::needs_guard(const Node& node) const {
  return is_comparison(node.op) && !is_equality(node.op) && facts_.at(&node).extent == Extent::diagonal &&
         join(operand(node, 0).extent, operand(node, 1).extent) == Extent::tile;
}

Fact Facts::learn(const Node& node) const {
  if (node.op == Op::leaf) return learn_leaf(node.leaf());
  Fact fact;
  for (const auto& below : node.operands) fact.extent = join(fact.extent, facts_.at(below.get()).extent);
  if (is_comparison(node.op)) {
    compare(node, fact);
  } else if (node.type == ExprType::i32) {
    collect(node, fact);
    if (fact.linear) fact.extent = linear_extent(fact.per_row, fact.per_column);
  }
  return fact;
}

void Facts::collect(const Node& node, Fact& fact) const {
  fact.linear = fact.extent == Extent::scalar;
  if (fact.linear || node.operands.empty()) return;
  const Fact& x = operand(node, 0);
  const Fact& y = node.operands.size() > 1 ? operand(node, 1) : x;
  if (!x.linear || !y.linear) return;
  const auto set = [&fact](std::uint32_t per_row, std::uint32_t per_column) {
    fact.linear = true;
    fact.per_row = per_row;
    fact.per_column = per_column;
  };
  if (node.op == Op::add) set(x.per_row + y.per_row, x.per_column + y.per_column);
  if (node.op == Op::sub) set(x.per_row - y.per_row, x.per_column - y.per_column);
  if (node.op == Op::neg) set(0U - x.per_row, 0U - x.per_column);
  if (node.op != Op::mul) return;
  for (std::size_t i : {0U, 1U}) {
    const Node& factor = *node.operands[i];
    if (factor.op != Op::constant) continue;
    const auto by = static_cast<std::uint32_t>(factor.i32());
    set(operand(node, 1 - i).per_row * by, operand(node, 1 - i).per_column * by);
  }
}

void Facts::compare(const Node& node, Fact& fact) const {
  const Fact& x = operand(node, 0);
  const Fact& y = operand(node, 1);
  if (!x.linear || !y.linear) return;
  const Extent extent = linear_extent(x.per_row - y.per_row, x.per_column - y.per_column);
  const bool now_diagonal = diagonal_comparisons_ && fact.extent == Extent::tile && extent == Extent::diagonal;
  if (is_equality(node.op) || now_diagonal) fact.extent = extent;
}

}  // namespace heddle::cpu
