// Derivatives against finite differences: a function's slope where it is smooth, and nothing where it is not.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "expr/node.h"

namespace heddle::test {

/// A function's slope at 0 by Richardson's extrapolation, and how far it may be off. Empty where the function is not
/// smooth enough around 0 to tell: not finite, a kink or a jump nearby, or too curved for the step.
struct Slope {
  double value, error;
};
template <class F>
std::optional<Slope> slope_at_zero(F&& f, double step) {
  const double middle = f(0);
  // One side alone, with an error of the third order.
  const auto one_sided = [&](double h) {
    const auto forward = [&](double width) { return (f(width) - middle) / width; };
    const double coarse = 2 * forward(h / 2) - forward(h);
    const double fine = 2 * forward(h / 4) - forward(h / 2);
    return (4 * fine - coarse) / 3;
  };
  const auto central = [&](double h) { return (f(h) - f(-h)) / (2 * h); };
  const double coarse = central(step);
  const double fine = central(step / 2);
  const double value = (4 * fine - coarse) / 3;
  const double scale = 1e-6 + 1e-6 * std::abs(value);
  const double noise = 1e-14 * std::abs(middle) / step;
  const double error = std::abs(value - fine) + 10 * noise;
  const bool smooth = std::abs(one_sided(step) - value) < 1e-3 * (1e-3 + std::abs(value)) &&
                      std::abs(one_sided(-step) - value) < 1e-3 * (1e-3 + std::abs(value)) &&
                      error < 1e-4 * (1e-2 + std::abs(value));
  if (!std::isfinite(value) || !smooth) return {};
  return Slope{value, scale + error};
}

/// Result for a derivative at one point. told is false where the function is not smooth, or where the derivative is
/// NaN: at sqrt(0 * score), say, the chain rule meets 0 * infinity. Such points must be rare.
struct Verdict {
  bool told = false;
  bool nan = false;
  std::string fault;
};
inline Verdict compare(const std::optional<Slope>& slope, double derivative) {
  if (!slope) return {};
  if (std::isnan(derivative)) return {false, true, {}};
  if (std::abs(slope->value - derivative) <= slope->error) return {true, false, {}};
  return {true, false,
          fmt::format("the derivative is {}, but the slope {} within {}", derivative, slope->value, slope->error)};
}

/// Parts of e that must stay as they are around a point for e to be smooth there: its whole numbers, its comparisons,
/// and the sides of its kinks. Finite differences alone take a staircase of small steps for a slope.
inline std::vector<Expr> steps_of(const Expr& e) {
  std::vector<Expr> steps;
  for (const expr::Node* node : expr::post_order(e)) {
    if (node->operands.empty() || node->operands[0]->type != ExprType::f32) continue;
    const bool rounds = node->op == expr::Op::floor || node->op == expr::Op::ceil || node->op == expr::Op::round ||
                        node->op == expr::Op::trunc;
    const bool whole =
        rounds || node->op == expr::Op::floor_div || node->op == expr::Op::to_i32 || node->op == expr::Op::sign;
    if (whole || expr::info(node->op).kind == expr::Kind::cmp || expr::info(node->op).kind == expr::Kind::test) {
      steps.push_back(expr::with_operands(*node, std::vector<Expr>(node->operands.begin(), node->operands.end())));
    }
    if (node->op == expr::Op::mod) steps.push_back(floor_div(expr::operand(*node, 0), expr::operand(*node, 1)));
    if (node->op == expr::Op::abs) steps.push_back(expr::operand(*node, 0) > 0.0);
    if (node->op == expr::Op::min || node->op == expr::Op::max) {
      steps.push_back(expr::operand(*node, 0) < expr::operand(*node, 1));
    }
  }
  return steps;
}

}  // namespace heddle::test
