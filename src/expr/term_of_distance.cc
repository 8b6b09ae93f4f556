// Finds terms that depend on how far a key is from the query alone, and where such a term no longer changes.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "expr/node.h"
#include "expr/simplify.h"

namespace heddle::expr {
namespace {

// The distance, kv_idx - q_idx, in an expression that reads no position in a tensor.
constexpr Leaf kDistance = Leaf::kv_token;

/// Far from wrapping.
bool is_small(const Expr& integer, const LeafRanges& leaves) {
  constexpr double kSmall = 1 << 29;
  const Range range = RangeAnalysis(integer, Precision::f32, nullptr)(leaves);
  return -kSmall <= range.lo && range.hi <= kSmall;
}

/// An i32 comparison whose sides are far from wrapping, so the sign of their difference decides it.
bool compares_small_integers(const Node& node, const LeafRanges& leaves) {
  if (info(node.op).kind != Kind::cmp || node.operands[0]->type != ExprType::i32) return false;
  return std::ranges::all_of(node.operands, [&](const auto& side) { return is_small(Expr(side), leaves); });
}

/// x % k for a constant k that divides what x, linear in the distance, grows by in a period.
bool is_periodic(const Node& node, const LeafRanges& leaves) {
  if (node.op != Op::mod || node.type != ExprType::i32 || node.operands[1]->op != Op::constant) return false;
  const std::int64_t divisor = node.operands[1]->i32();
  if (divisor == 0 || !is_small(operand(node, 0), leaves)) return false;
  const std::optional<Expr> slope = slope_over_keys(operand(node, 0), leaves);
  return slope && slope->node()->op == Op::constant &&
         std::int64_t{slope->node()->i32()} * kDistancePeriod % divisor == 0;
}

/// `e` with kv_idx written as q_idx + distance, and comparisons as those of a difference with 0, in which q_idx may
/// cancel.
Expr by_distance(const Expr& e, const LeafRanges& leaves) {
  return rewrite(e, [&](const Node& node, std::span<const Expr> operands) {
    if (node.op == Op::leaf && node.leaf() == Leaf::kv_idx) return leaf::q_idx() + leaf::kv_token();
    if (compares_small_integers(node, leaves)) return build(node.op, std::array{operands[0] - operands[1], Expr(0)});
    return with_operands(node, operands);
  });
}

enum class Sameness : bool { of_all, of_a_period };

/// Whether a node has one value for all distances of a range, or for all that differ by whole periods. A node has if it
/// is a number, or if all its operands have.
class Constancy {
 public:
  Constancy(const Expr& term, Sameness sameness) : term_(term), sameness_(sameness) {
    for (const Node* node : post_order(term)) {
      if (!node->uses.has(kDistance) || node->op == Op::leaf) continue;
      std::vector<Expr> operands;
      for (std::size_t i = 0; i < node->operands.size(); ++i) operands.push_back(operand(*node, i));
      analyses_.emplace(node, RangeAnalysis(with_operands(*node, operands), Precision::f32, nullptr));
    }
  }

  bool operator()(LeafRanges leaves, double from, double to) const {
    leaves[kDistance] = {from, to, false};
    std::unordered_map<const Node*, bool> constant;
    for (const Node* node : post_order(term_)) constant[node] = is_constant(*node, leaves, constant);
    return constant.at(term_.node());
  }

 private:
  bool is_constant(const Node& node, const LeafRanges& leaves,
                   const std::unordered_map<const Node*, bool>& constant) const {
    if (!node.uses.has(kDistance)) return true;
    if (node.op == Op::leaf) return leaves[kDistance].is_point();
    if (analyses_.at(&node)(leaves).is_point()) return true;
    if (sameness_ == Sameness::of_a_period && is_periodic(node, leaves)) return true;
    return std::ranges::all_of(node.operands, [&](const auto& below) { return constant.at(below.get()); });
  }

  const Expr& term_;
  Sameness sameness_;
  std::unordered_map<const Node*, RangeAnalysis> analyses_;
};

/// The least x of [lo, hi] for which `holds` is true; it must be true from there on. hi + 1 if there is none.
template <class Holds>
std::int64_t first_that_holds(std::int64_t lo, std::int64_t hi, Holds&& holds) {
  ++hi;
  while (lo < hi) {
    const std::int64_t middle = lo + (hi - lo) / 2;
    if (holds(middle)) {
      hi = middle;
    } else {
      lo = middle + 1;
    }
  }
  return lo;
}

}  // namespace

std::optional<TermOfDistance> term_of_distance(const Expr& e, const LeafRanges& leaves) {
  const LeafSet refused = {Leaf::score,  Leaf::q_token, Leaf::kv_token, Leaf::q_len,
                           Leaf::kv_len, Leaf::q_start, Leaf::kv_start};
  if (e.node()->uses.intersects(refused) || !e.node()->uses.has(Leaf::kv_idx)) return {};
  const Expr term = simplify(by_distance(e, leaves), Precision::f32);
  if (term.node()->uses.has(Leaf::q_idx)) return {};
  const Constancy constant(term, Sameness::of_all), periodic(term, Sameness::of_a_period);
  const auto end = [](double x) { return static_cast<std::int64_t>(x); };
  const std::int64_t least = end(leaves[Leaf::kv_idx].lo - leaves[Leaf::q_idx].hi),
                     most = end(leaves[Leaf::kv_idx].hi - leaves[Leaf::q_idx].lo);
  const auto number = [](std::int64_t x) { return static_cast<double>(x); };
  const std::int64_t from =
      first_that_holds(least, most, [&](std::int64_t x) { return constant(leaves, number(x), number(most)); });
  const auto last_of = [&](const Constancy& same) {
    return first_that_holds(least, most, [&](std::int64_t x) { return !same(leaves, number(least), number(x)); }) - 1;
  };
  return TermOfDistance{from, last_of(constant), last_of(periodic)};
}

std::optional<BoundOfDistance> bound_of_distance(const Expr& e, const LeafRanges& leaves) {
  if (!compares_small_integers(*e.node(), leaves) || !term_of_distance(e, leaves)) return {};
  const Op op = e.node()->op;
  if (op == Op::eq || op == Op::ne) return {};
  // sign * distance + rest, compared with 0
  const Expr difference = operand(*e.node(), 0) - operand(*e.node(), 1);
  const std::optional<Expr> slope = slope_over_keys(difference, leaves);
  if (!slope || slope->node()->op != Op::constant) return {};
  const std::int32_t sign = slope->node()->i32();
  if (sign != 1 && sign != -1) return {};
  const Expr rest = rewrite(difference, [](const Node& node, std::span<const Expr> operands) {
    const bool position = node.op == Op::leaf && (node.leaf() == Leaf::kv_idx || node.leaf() == Leaf::q_idx);
    return position ? Expr(0) : with_operands(node, operands);
  });
  const bool below = op == Op::lt || op == Op::le, strict = op == Op::lt || op == Op::gt, is_most = below == (sign > 0);
  const Expr bound = sign > 0 ? -rest : rest;
  const Expr value = strict ? (is_most ? bound - 1 : bound + 1) : bound;
  return BoundOfDistance{simplify(value, Precision::f32), is_most};
}

}  // namespace heddle::expr
