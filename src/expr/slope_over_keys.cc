// Finds the slope of a term that is linear in the key's index, which kernels compute once a block of keys.
#include <unordered_map>

#include "expr/node.h"
#include "expr/simplify.h"

namespace heddle::expr {
namespace {

constexpr double kLargestExact = 16777216;  // the integers that f32 holds exactly

bool reads_keys(const Node& node) { return node.uses.intersects({Leaf::kv_idx, Leaf::kv_token}); }

Expr zero(ExprType type) { return type == ExprType::i32 ? Expr(0) : Expr(0.0); }

/// The slope of a node that reads keys; `slopes` are those of its operands; empty for an operand that is no number.
std::optional<Expr> slope_of(const Node& node, std::span<const Expr> slopes, const LeafRanges& leaves) {
  const auto reads = [&](std::size_t i) { return reads_keys(*node.operands[i]); };
  switch (node.op) {
    case Op::leaf:
      return Expr(1);
    case Op::add:
      return slopes[0] + slopes[1];
    case Op::sub:
      return slopes[0] - slopes[1];
    case Op::neg:
      return -slopes[0];
    case Op::mul:
      if (reads(0) && reads(1)) return {};
      return reads(0) ? slopes[0] * operand(node, 1) : operand(node, 0) * slopes[1];
    case Op::div:
      if (reads(1)) return {};
      return slopes[0] / operand(node, 1);
    case Op::where:
      if (reads(0)) return {};
      return where(operand(node, 0), slopes[1], slopes[2]);
    case Op::to_f32: {
      const Range range = RangeAnalysis(operand(node, 0), Precision::f32, nullptr)(leaves);
      if (range.lo < -kLargestExact || range.hi > kLargestExact) return {};
      return to_f32(slopes[0]);
    }
    default:
      return {};
  }
}

}  // namespace

std::optional<Expr> slope_over_keys(const Expr& e, const LeafRanges& leaves) {
  std::unordered_map<const Node*, Expr> found;
  std::vector<Expr> slopes;
  for (const Node* node : post_order(e)) {
    if (node->uses.has(Leaf::score)) return {};
    if (!reads_keys(*node)) {
      found.emplace(node, node->type == ExprType::boolean ? Expr() : zero(node->type));
      continue;
    }
    slopes.clear();
    for (const auto& below : node->operands) slopes.push_back(found.at(below.get()));
    const std::optional<Expr> slope = node->type == ExprType::boolean ? std::nullopt : slope_of(*node, slopes, leaves);
    if (!slope) return {};
    found.emplace(node, *slope);
  }
  return simplify(found.at(e.node()), Precision::f32);
}

}  // namespace heddle::expr
