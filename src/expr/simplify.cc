#include "expr/simplify.h"

#include <algorithm>

#include "expr/rules.h"
#include "expr/verify.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

/// Every rule makes its node simpler or moves it towards one form, so both loops end soon; the bounds are a guard.
constexpr int kMostSteps = 64;
constexpr int kMostPasses = 32;

/// An operation on constants, as a constant; empty for others.
Expr folded(const Node& node, Precision precision) {
  if (node.operands.empty() || info(node.op).kind == Kind::read) return {};
  std::vector<Value> values;
  for (const auto& operand : node.operands) {
    if (operand->op != Op::constant) return {};
    values.push_back(constant_value(*operand, precision));
  }
  return std::visit([](auto value) { return Expr(value); }, apply(node.op, node.type, values, precision));
}

/// Applies the first rule that matches; empty when none does.
Expr rewritten(const Node& node, Precision precision, bool may_grow) {
  if (Expr constant = folded(node, precision); !constant.empty()) return constant;
  for (const Rule& rule : rules_of(node.op)) {
    if (rule.may_grow && !may_grow) continue;
    if (Expr result = rule.apply(node, precision); !result.empty()) return result;
  }
  return {};
}

Expr one_pass(const Expr& e, Precision precision, bool may_grow) {
  return rewrite(e, [&](const Node& node, std::span<const Expr> operands) {
    Expr here = with_operands(node, operands);
    for (int step = 0; step < kMostSteps; ++step) {
      const Expr next = rewritten(*here.node(), precision, may_grow);
      if (next.empty()) break;
      here = next;
    }
    return here;
  });
}

}  // namespace

Expr simplify(const Expr& e, Precision precision) {
  if (e.empty()) return e;
  verify(e);
  Expr simplest = e;
  for (int pass = 0; pass < kMostPasses; ++pass) {
    const std::size_t size = post_order(simplest).size();
    Expr next = one_pass(simplest, precision, true);
    if (post_order(next).size() > size) next = one_pass(simplest, precision, false);
    if (same(next, simplest)) break;
    simplest = next;
  }
  verify(simplest);
  return simplest;
}

}  // namespace heddle::expr
