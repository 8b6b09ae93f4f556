// Takes terms and factors of score mods apart by what they read.
#include <cmath>
#include <unordered_map>

#include "expr/node.h"
#include "expr/separate.h"

namespace heddle::expr {
namespace {

bool reads_query(const Node& node) { return node.uses.intersects({Leaf::q_idx, Leaf::q_token}); }
bool reads_key(const Node& node) { return node.uses.intersects({Leaf::kv_idx, Leaf::kv_token}); }
bool reads_neither(const Node& node) { return !reads_query(node) && !reads_key(node); }

Expr sum(const Expr& x, const Expr& y) {
  if (x.empty()) return y;
  return y.empty() ? x : x + y;
}

/// `operation` of each part that is there.
template <class Operation>
SeparatedTerm of_parts(const SeparatedTerm& x, Operation&& operation) {
  const auto of = [&](const Expr& part) { return part.empty() ? part : operation(part); };
  return {of(x.of_query), of(x.of_key), of(x.of_both)};
}
SeparatedTerm sum_of_parts(const SeparatedTerm& x, const SeparatedTerm& y) {
  return {sum(x.of_query, y.of_query), sum(x.of_key, y.of_key), sum(x.of_both, y.of_both)};
}

SeparatedTerm where_of_parts(const Expr& condition, const SeparatedTerm& yes, const SeparatedTerm& no) {
  const auto choose = [&](const Expr& x, const Expr& y) {
    if (x.empty() && y.empty()) return Expr();
    return where(condition, x.empty() ? Expr(0.0) : x, y.empty() ? Expr(0.0) : y);
  };
  return {choose(yes.of_query, no.of_query), choose(yes.of_key, no.of_key), choose(yes.of_both, no.of_both)};
}

/// Separates a node that reads query and key. `handle`: the node itself; part(i): the parts of its operand i.
template <class Part>
SeparatedTerm parts_of(const Node& node, const Expr& handle, Part&& part) {
  const auto is_free = [&](std::size_t i) { return reads_neither(*node.operands[i]); };
  const auto negative = [](const Expr& x) { return -x; };
  switch (node.op) {
    case Op::add:
      return sum_of_parts(part(0), part(1));
    case Op::sub:
      return sum_of_parts(part(0), of_parts(part(1), negative));
    case Op::neg:
      return of_parts(part(0), negative);
    case Op::mul:
      if (is_free(1)) return of_parts(part(0), [&](const Expr& x) { return x * operand(node, 1); });
      if (is_free(0)) return of_parts(part(1), [&](const Expr& x) { return operand(node, 0) * x; });
      break;
    case Op::div:
      if (is_free(1)) return of_parts(part(0), [&](const Expr& x) { return x / operand(node, 1); });
      break;
    case Op::where:
      if (is_free(0)) return where_of_parts(operand(node, 0), part(1), part(2));
      break;
    default:
      break;
  }
  return {.of_query = {}, .of_key = {}, .of_both = handle};
}

/// scale * factor * score + offset, of a node that reads the score; an empty factor is 1.
using Scaled = std::optional<ScoreOfKey>;

Scaled of_sum(const Node& node, const Scaled& x, const Scaled& y) {
  const bool minus = node.op == Op::sub;
  const auto signed_by = [&](const Expr& e) { return minus && !e.empty() ? -e : e; };
  if (!y) return ScoreOfKey{x->scale, x->factor, sum(x->offset, signed_by(operand(node, 1)))};
  const double sign = minus ? -1 : 1;
  if (!x) return ScoreOfKey{sign * y->scale, y->factor, sum(operand(node, 0), signed_by(y->offset))};
  if (!same(x->factor, y->factor)) return {};
  return ScoreOfKey{x->scale + sign * y->scale, x->factor, sum(x->offset, signed_by(y->offset))};
}

Scaled of_product(const ScoreOfKey& x, const Expr& other) {
  const Expr offset = x.offset.empty() ? x.offset : x.offset * other;
  if (other.node()->op == Op::constant) return ScoreOfKey{x.scale * other.node()->f32(), x.factor, offset};
  return ScoreOfKey{x.scale, x.factor.empty() ? other : x.factor * other, offset};
}

Scaled of_quotient(const ScoreOfKey& x, const Expr& divisor) {
  const Expr offset = x.offset.empty() ? x.offset : x.offset / divisor;
  if (divisor.node()->op == Op::constant) return ScoreOfKey{x.scale / divisor.node()->f32(), x.factor, offset};
  return ScoreOfKey{x.scale, (x.factor.empty() ? Expr(1.0) : x.factor) / divisor, offset};
}

/// A branch without the score would multiply it by 0, and let a NaN in it through.
Scaled of_where(const Node& node, const Scaled& yes, const Scaled& no) {
  if (!yes || !no) return {};
  const Expr condition = operand(node, 0);
  const auto factor = [](const ScoreOfKey& x) { return x.factor.empty() ? Expr(x.scale) : Expr(x.scale) * x.factor; };
  const auto offset = [](const ScoreOfKey& x) { return x.offset.empty() ? Expr(0.0) : x.offset; };
  ScoreOfKey chosen = *yes;
  if (yes->scale != no->scale || !same(yes->factor, no->factor)) {
    chosen = {1, where(condition, factor(*yes), factor(*no)), {}};
  }
  if (!yes->offset.empty() || !no->offset.empty()) chosen.offset = where(condition, offset(*yes), offset(*no));
  return chosen;
}

/// x: of the operands, nothing for one that does not read the score.
Scaled of_operation(const Node& node, std::span<const Scaled> x) {
  switch (node.op) {
    case Op::leaf:
      return ScoreOfKey{1, {}, {}};
    case Op::add:
    case Op::sub:
      return of_sum(node, x[0], x[1]);
    case Op::neg:
      return ScoreOfKey{-x[0]->scale, x[0]->factor, x[0]->offset.empty() ? Expr() : -x[0]->offset};
    case Op::mul:
      if (x[0] && x[1]) return {};
      return x[0] ? of_product(*x[0], operand(node, 1)) : of_product(*x[1], operand(node, 0));
    case Op::div:
      return x[1] ? Scaled() : of_quotient(*x[0], operand(node, 1));
    case Op::where:
      return x[0] ? Scaled() : of_where(node, x[1], x[2]);
    default:
      return {};
  }
}

}  // namespace

SeparatedTerm separate_term(const Expr& term) {
  std::unordered_map<const Node*, SeparatedTerm> found;
  rewrite(term, [&](const Node& node, std::span<const Expr> operands) {
    const Expr e = with_operands(node, operands);
    if (node.type != ExprType::f32) return e;
    SeparatedTerm parts;
    if (!reads_key(node)) {
      parts.of_query = e;
    } else if (!reads_query(node)) {
      parts.of_key = e;
    } else {
      parts = parts_of(node, e, [&](std::size_t i) { return found.at(node.operands[i].get()); });
    }
    found.emplace(&node, std::move(parts));
    return e;
  });
  return found.at(term.node());
}

std::optional<ScoreOfKey> factor_of_key(const Expr& score_mod) {
  std::unordered_map<const Node*, ScoreOfKey> found;  // of the nodes that read the score
  std::vector<Scaled> operands;
  for (const Node* node : post_order(score_mod)) {
    if (!node->uses.has(Leaf::score)) continue;
    operands.clear();
    for (const auto& below : node->operands) {
      const auto of_operand = found.find(below.get());
      operands.push_back(of_operand == found.end() ? Scaled() : of_operand->second);
    }
    const Scaled scaled = of_operation(*node, operands);
    if (!scaled || scaled->scale == 0 || !std::isfinite(scaled->scale)) return {};
    found.emplace(node, *scaled);
  }
  const auto root = found.find(score_mod.node());
  if (root == found.end() || root->second.factor.empty() || reads_query(*root->second.factor.node())) return {};
  return root->second;
}

}  // namespace heddle::expr
