// Forward differentiation: each node's derivative from the derivatives of its operands. An empty derivative is zero, so
// what does not depend on the variable costs nothing.
#include "expr/differentiate.h"

#include <algorithm>
#include <array>
#include <numbers>
#include <unordered_map>

#include "expr/simplify.h"

namespace heddle::expr {
namespace {

bool is_zero(const Expr& x) { return x.empty() || (x.node()->op == Op::constant && x.node()->f32() == 0); }
Expr or_zero(const Expr& x) { return x.empty() ? Expr(0.0) : x; }

Expr plus(const Expr& x, const Expr& y) {
  if (x.empty()) return y;
  return y.empty() ? x : x + y;
}
Expr minus(const Expr& x) { return x.empty() ? x : -x; }

/// where(c, x, y) of derivatives.
Expr choose(const Expr& condition, const Expr& x, const Expr& y) {
  if (x.empty() && y.empty()) return {};
  return !x.empty() && !y.empty() && same(x, y) ? x : where(condition, or_zero(x), or_zero(y));
}

bool is_choice(const Expr& x) { return !x.empty() && x.node()->op == Op::where; }

/// f(d) for an f with f(0) = 0. A zero branch of d stays zero: 0 times an infinite slope would be NaN.
template <class F>
Expr scaled(const Expr& d, F&& f) {
  if (is_zero(d)) return {};
  const Node& node = *d.node();
  if (node.op != Op::where) return f(d);
  const Expr yes = operand(node, 1);
  const Expr no = operand(node, 2);
  if (!is_zero(yes) && !is_zero(no)) return f(d);
  return where(operand(node, 0), or_zero(scaled(yes, f)), or_zero(scaled(no, f)));
}
Expr times(const Expr& slope, const Expr& d) {
  return scaled(d, [&](const Expr& x) { return slope * x; });
}
Expr over(const Expr& d, const Expr& divisor) {
  return scaled(d, [&](const Expr& x) { return x / divisor; });
}

/// Arguments of a rule: the node, its operands, and their derivatives.
struct Operands {
  const Node* variable;
  Expr e;  // the node itself: exp and others are their own slope
  std::vector<Expr> x;
  std::vector<Expr> d;
};

/// slope * d of a function that levels off: its slope is 0 where its argument is far out, and there d, which may grow
/// with the variable, may be infinite. A slope of 0 stays 0.
Expr damped(const Expr& slope, const Expr& d, const Operands& o) {
  return scaled(d, [&](const Expr& x) {
    const std::vector<const Node*> nodes = post_order(x);
    const bool grows = std::ranges::find(nodes, o.variable) != nodes.end();
    return grows ? where(slope == 0.0, 0.0, slope * x) : slope * x;
  });
}

/// One row for each operation, named as in ops.def. Rows see f32 nodes with some operand that varies.
struct Rows {
  using X = const Operands&;
  using Row = Expr (*)(X);

  static Expr none(X) { return {}; }
  /// Integers and booleans do not vary smoothly, and what is computed from them alone does not either.
  static constexpr Row constant = none, leaf = none, param = none, read = none, random_uniform = none;
  static constexpr Row lt = none, le = none, gt = none, ge = none, eq = none, ne = none;
  static constexpr Row logical_and = none, logical_or = none, logical_xor = none, logical_not = none;
  static constexpr Row to_f32 = none, to_i32 = none;
  static constexpr Row bit_and = none, bit_or = none, bit_xor = none, bit_not = none;
  static constexpr Row shift_left = none, shift_right = none, isnan = none, isinf = none;
  static constexpr Row floor = none, ceil = none, round = none, trunc = none, floor_div = none, sign = none;

  static Expr add(X o) { return plus(o.d[0], o.d[1]); }
  static Expr sub(X o) {
    if (o.d[0].empty() || o.d[1].empty()) return plus(o.d[0], minus(o.d[1]));
    return o.d[0] - o.d[1];
  }
  static Expr mul(X o) {
    if (same(o.x[0], o.x[1])) return times(o.x[0] * 2.0, o.d[0]);
    return plus(times(o.x[1], o.d[0]), times(o.x[0], o.d[1]));
  }
  static Expr div(X o) {
    const bool whole = !is_choice(o.d[0]) && !is_choice(o.d[1]) && !o.d[0].empty() && !o.d[1].empty();
    if (whole) return (o.d[0] - damped(o.e, o.d[1], o)) / o.x[1];  // near 0 / 0 the two terms cancel
    return plus(over(o.d[0], o.x[1]), damped(-(o.e / o.x[1]), o.d[1], o));
  }
  /// x % y = x - n y. A rounded x / y may be past n.
  static Expr mod(X o) { return plus(o.d[0], times(-heddle::round((o.x[0] - o.e) / o.x[1]), o.d[1])); }
  static Expr neg(X o) { return minus(o.d[0]); }
  static Expr abs(X o) { return choose(o.x[0] > 0.0, o.d[0], choose(o.x[0] < 0.0, minus(o.d[0]), {})); }
  static Expr min(X o) { return extreme(o.x[0] < o.x[1], o); }
  static Expr max(X o) { return extreme(o.x[0] > o.x[1], o); }
  static Expr extreme(const Expr& first_wins, X o) {
    if (!o.d[0].empty() && !o.d[1].empty() && same(o.d[0], o.d[1])) return o.d[0];
    const Expr tie = times(0.5, plus(o.d[0], o.d[1]));
    return choose(first_wins, o.d[0], choose(o.x[0] == o.x[1], tie, o.d[1]));
  }
  static Expr where(X o) { return choose(o.x[0], o.d[1], o.d[2]); }
  /// The fill's derivative; differentiate() adds the element's where it is the variable.
  static Expr at(X o) { return choose(takes_fill(o.e), o.d.back(), {}); }

  static Expr sqrt(X o) { return times(0.5, over(o.d[0], o.e)); }
  static Expr rsqrt(X o) { return damped(-0.5 * o.e / o.x[0], o.d[0], o); }
  static Expr exp(X o) { return damped(o.e, o.d[0], o); }
  static Expr exp2(X o) { return damped(o.e * std::numbers::ln2, o.d[0], o); }
  static Expr expm1(X o) { return damped(o.e + 1.0, o.d[0], o); }
  static Expr log(X o) { return over(o.d[0], o.x[0]); }
  static Expr log2(X o) { return over(times(std::numbers::log2e, o.d[0]), o.x[0]); }
  static Expr log1p(X o) { return over(o.d[0], o.x[0] + 1.0); }
  static Expr tanh(X o) { return damped(1.0 - o.e * o.e, o.d[0], o); }
  static Expr sigmoid(X o) { return damped(o.e * (1.0 - o.e), o.d[0], o); }
  static Expr sin(X o) { return times(heddle::cos(o.x[0]), o.d[0]); }
  static Expr cos(X o) { return times(-heddle::sin(o.x[0]), o.d[0]); }
  static Expr tan(X o) { return times(1.0 + o.e * o.e, o.d[0]); }
  static Expr atan(X o) { return damped(1.0 / (1.0 + o.x[0] * o.x[0]), o.d[0], o); }
  static Expr erf(X o) { return damped(2 * std::numbers::inv_sqrtpi * heddle::exp(-(o.x[0] * o.x[0])), o.d[0], o); }
  static Expr erfc(X o) { return damped(-2 * std::numbers::inv_sqrtpi * heddle::exp(-(o.x[0] * o.x[0])), o.d[0], o); }
  static Expr pow(X o) {
    const Expr& x = o.x[0];
    const Expr& y = o.x[1];
    const Expr in_base = damped(y * heddle::pow(x, y - 1.0), o.d[0], o);
    const Expr in_exponent = times(o.e * heddle::log(x), o.d[1]);
    // pow(x, 0) is 1 and pow(0, y) is 0 all around, whatever the other factor says.
    return plus(choose(y == 0.0, {}, in_base), choose((x == 0.0) & (y >= 0.0), {}, in_exponent));
  }

  /// An `at` gives two fills back when it is outside, and the same element twice when it is inside.
  static Expr takes_fill(const Expr& at) {
    const Node& node = *at.node();
    std::vector<Expr> operands;
    for (const auto& below : node.operands) operands.emplace_back(below);
    operands.back() = Expr(0.0);
    const Expr zero = with_operands(node, operands);
    operands.back() = Expr(1.0);
    return zero != with_operands(node, operands);
  }

  static constexpr std::array<Row, kOpCount> table = {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) name,
#include "expr/ops.def"
  };
};

/// d root / d variable for a variable that is a leaf or a read; empty when it is zero everywhere.
Expr derivative(const Expr& root, const Node* variable) {
  std::unordered_map<const Node*, Expr> d;  // of the nodes that vary
  for (const Node* node : post_order(root)) {
    Operands operands{variable, {}, {}, {}};
    bool varies = false;
    for (const auto& below : node->operands) {
      const auto found = d.find(below.get());
      operands.x.emplace_back(below);
      operands.d.push_back(found == d.end() ? Expr() : found->second);
      varies = varies || found != d.end();
    }
    if (!varies && node != variable) continue;
    operands.e = with_operands(*node, operands.x);
    Expr here = varies ? Rows::table[static_cast<std::size_t>(node->op)](operands) : Expr();
    if (node == variable) {
      here = node->op == Op::at ? choose(Rows::takes_fill(operands.e), here, 1.0) : Expr(1.0);
    }
    if (!is_zero(here)) d.emplace(node, here);
  }
  const auto found = d.find(root.node());
  return found == d.end() ? Expr() : found->second;
}

Expr simplified(const Expr& e, SimplifiedFor precision) { return precision ? simplify(e, *precision) : e; }

/// The derivative, or empty when it is zero everywhere.
Expr gradient_of(const Expr& e, const Node* variable, SimplifiedFor precision) {
  const Expr gradient = derivative(e, variable);
  if (gradient.empty()) return {};
  const Expr simple = simplified(gradient, precision);
  return is_zero(simple) ? Expr() : simple;
}

}  // namespace

Expr d_score(const Expr& e, SimplifiedFor precision) {
  const Expr score = leaf::score();
  return simplified(or_zero(derivative(e, score.node())), precision);
}

std::vector<CaptureGradient> d_captures(const Expr& e, SimplifiedFor precision) {
  std::vector<CaptureGradient> gradients;
  for (const Node* node : post_order(e)) {
    if (info(node->op).kind != Kind::read || node->type != ExprType::f32) continue;
    const Expr gradient = gradient_of(e, node, precision);
    if (gradient.empty()) continue;
    const auto rank = static_cast<std::size_t>(node->capture().rank);
    CaptureGradient here{node->capture(), {}, gradient, node->op == Op::at};
    for (std::size_t axis = 0; axis < rank; ++axis) here.indices.push_back(operand(*node, axis));
    gradients.push_back(std::move(here));
  }
  return gradients;
}

std::vector<ParamGradient> d_params(const Expr& e, SimplifiedFor precision) {
  std::vector<ParamGradient> gradients;
  for (const Node* node : post_order(e)) {
    if (node->op != Op::param || node->type != ExprType::f32) continue;
    const Expr gradient = gradient_of(e, node, precision);
    if (!gradient.empty()) gradients.push_back({node->param().name, gradient});
  }
  return gradients;
}

}  // namespace heddle::expr
