// Rewrite rules of booleans, and of choices by them.
#include <array>

#include "expr/comparisons.h"
#include "expr/rule_parts.h"
#include "expr/rules.h"

namespace heddle::expr {
namespace {

Expr not_not(const Node& x, Precision) { return first(x).op == Op::logical_not ? handle(first(x), 0) : Expr(); }
Expr not_comparison(const Node& x, Precision) {
  if (!has_complement(first(x))) return {};
  return node(complement(first(x).op), handle(first(x), 0), handle(first(x), 1));
}
/// and: neutral is true; or: neutral is false.
Expr logic_with_constant(const Node& x, Precision) {
  const bool neutral = x.op == Op::logical_and;
  for (const std::size_t side : {0U, 1U}) {
    if (is_boolean(*x.operands[side], neutral)) return handle(x, 1 - side);
    if (is_boolean(*x.operands[side], !neutral)) return handle(x, side);
  }
  return {};
}
Expr logic_of_same(const Node& x, Precision) {
  if (same_operands(x)) return handle(x, 0);
  return opposite(first(x), second(x)) ? Expr(x.op == Op::logical_or) : Expr();
}
/// x and (x or y) = x; x and (x and y) = x and y; and the same with or.
Expr absorbed(const Node& x, Precision) {
  for (const std::size_t side : {0U, 1U}) {
    const Node& outer = *x.operands[side];
    const Node& inner = *x.operands[1 - side];
    if (inner.op != Op::logical_and && inner.op != Op::logical_or) continue;
    if (&first(inner) != &outer && &second(inner) != &outer) continue;
    return handle(x, inner.op == x.op ? 1 - side : side);
  }
  return {};
}
Expr xor_edges(const Node& x, Precision) {
  if (same_operands(x)) return Expr(false);
  if (opposite(first(x), second(x))) return Expr(true);
  for (const std::size_t side : {0U, 1U}) {
    if (is_boolean(*x.operands[side], false)) return handle(x, 1 - side);
    if (is_boolean(*x.operands[side], true)) return node(Op::logical_not, handle(x, 1 - side));
  }
  return {};
}

// where.

Expr where_decided(const Node& x, Precision) {
  if (is_constant(first(x))) return handle(x, first(x).boolean() ? 1 : 2);
  return x.operands[1] == x.operands[2] ? handle(x, 1) : Expr();
}
Expr where_not(const Node& x, Precision) {
  if (first(x).op != Op::logical_not) return {};
  return make(Op::where, x.type, std::array{handle(first(x), 0), handle(x, 2), handle(x, 1)});
}
Expr where_again(const Node& x, Precision) {
  const Node& yes = *x.operands[1];
  const Node& no = *x.operands[2];
  const bool in_yes = yes.op == Op::where && yes.operands[0] == x.operands[0];
  const bool in_no = no.op == Op::where && no.operands[0] == x.operands[0];
  if (!in_yes && !in_no) return {};
  return make(Op::where, x.type,
              std::array{handle(x, 0), in_yes ? handle(yes, 1) : handle(x, 1), in_no ? handle(no, 2) : handle(x, 2)});
}
Expr where_of_booleans(const Node& x, Precision) {
  const Node& yes = *x.operands[1];
  const Node& no = *x.operands[2];
  if (is_boolean(yes, true))
    return is_boolean(no, false) ? handle(x, 0) : node(Op::logical_or, handle(x, 0), handle(x, 2));
  if (is_boolean(no, false)) return node(Op::logical_and, handle(x, 0), handle(x, 1));
  return is_boolean(yes, false) && is_boolean(no, true) ? node(Op::logical_not, handle(x, 0)) : Expr();
}

constexpr Rule kRules[] = {
    {Op::logical_and, "x and True = x; x and False = False", logic_with_constant},
    {Op::logical_and, "x and x = x; x and not x = False", logic_of_same},
    {Op::logical_and, "x and (x or y) = x; x and (x and y) = x and y", absorbed},
    {Op::logical_or, "x or False = x; x or True = True", logic_with_constant},
    {Op::logical_or, "x or x = x; x or not x = True", logic_of_same},
    {Op::logical_or, "x or (x and y) = x; x or (x or y) = x or y", absorbed},
    {Op::logical_xor, "x ^ x = False; x ^ not x = True; x ^ False = x; x ^ True = not x", xor_edges},
    {Op::logical_not, "not not x = x", not_not},
    {Op::logical_not, "not x < y = x >= y for i32; not x == y = x != y", not_comparison},
    {Op::where, "where(True, x, y) = x; where(c, x, x) = x", where_decided},
    {Op::where, "where(not c, x, y) = where(c, y, x)", where_not},
    {Op::where, "where(c, where(c, x, y), z) = where(c, x, z)", where_again},
    {Op::where, "where(c, True, x) = c or x; where(c, x, False) = c and x; where(c, False, True) = not c",
     where_of_booleans},
};

}  // namespace

std::span<const Rule> rules_of_logic() { return kRules; }

}  // namespace heddle::expr
