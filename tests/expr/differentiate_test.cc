// Derivatives against finite differences in double, at points where the function is smooth, and at kinks by hand.
#include "expr/differentiate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "expr/finite_differences.h"
#include "expr/movable_captures.h"
#include "expr/random_expression.h"
#include "expr/verify.h"
#include "sample.h"

namespace heddle::expr {
namespace {

using test::compare;
using test::MovableCaptures;
using test::RandomExpressions;
using test::slope_at_zero;
using test::steps_of;
using test::Verdict;
using test::with_f64_captures;

std::vector<Expr> reals_of(const Expr& e) {
  std::vector<Expr> reals;
  for (const Node* node : post_order(e)) {
    if (node->type != ExprType::f32) continue;
    reals.push_back(with_operands(*node, std::vector<Expr>(node->operands.begin(), node->operands.end())));
  }
  return reals;
}

/// `evaluate` gives an expression's value with the variable moved by so much.
template <class F>
Verdict judge(const Expr& e, double derivative, double step, F&& evaluate) {
  for (const Expr& x : steps_of(e)) {
    const Value here = evaluate(x, 0.0);
    if (evaluate(x, -step) != here || evaluate(x, step) != here) return {};
  }
  const auto moved = [&](double by) { return std::get<double>(evaluate(e, by)); };
  Verdict verdict = compare(slope_at_zero(moved, step), derivative);
  if (verdict.fault.empty()) return verdict;
  // Next to a large number the step is lost in rounding, and shows nothing; nor does it next to a quotient so large
  // that its steps cannot be told apart (1 % y for y = 1e-308).
  constexpr double kLarge = 1e6;
  for (const Expr& x : steps_of(e)) {
    if (x.type() == ExprType::f32 && std::abs(std::get<double>(evaluate(x, 0.0))) > kLarge) return {};
  }
  for (const Expr& x : reals_of(e)) {
    if (std::abs(std::get<double>(evaluate(x, 0.0))) > kLarge) return {};
  }
  return verdict;
}

Verdict judge_score(const Expr& e, const Element& element, const Bindings& bindings) {
  const Expr derivative = d_score(e, Precision::f64);
  verify(derivative);
  const double step = 1e-3 * std::max(1.0, std::abs(element.score));
  return judge(e, Interpreter(derivative, bindings, Precision::f64).real(element), step, [&](const Expr& x, double by) {
    Element there = element;
    there.score += by;
    return Interpreter(x, bindings, Precision::f64)(there);
  });
}

test::Vocabulary smooth_vocabulary() {
  test::Vocabulary vocabulary;
  vocabulary.leaves = {Leaf::score, Leaf::score, Leaf::score, Leaf::q_idx, Leaf::kv_idx, Leaf::h};
  vocabulary.extreme_constants = false;
  return vocabulary;
}

Element mild_element(RandomExpressions& random) {
  Element element = random.element();
  element.score = (random.unit() - 0.5) * 6;
  for (int i = 1; i < kLeafCount; ++i) element.index[static_cast<std::size_t>(i)] = random.below(9);
  return element;
}

TEST(Differentiate, ScoreAgreesWithFiniteDifferences) {
  RandomExpressions random(4, smooth_vocabulary());
  std::array<int, kOpCount> told{};
  const int judged = heddle::test::random_cases(heddle::test::takes_all() ? 40000 : 10000);
  int count = 0;
  int nan = 0;
  for (int drawn = 0; count < judged; ++drawn) {
    ASSERT_LT(drawn, 400000) << "too few smooth points";
    const Expr e = random.draw(ExprType::f32, 2 + random.below(14));
    if (!e.node()->uses.has(Leaf::score)) continue;
    const Element element = mild_element(random);
    const Verdict verdict = judge_score(e, element, random.bindings());
    if (!verdict.fault.empty()) {
      const auto fails = [&](const Expr& x) { return !judge_score(x, element, random.bindings()).fault.empty(); };
      const Expr small = test::shrink(e, fails);
      FAIL() << print(small) << "\n"
             << judge_score(small, element, random.bindings()).fault << " at score " << element.score << "\n"
             << print(d_score(small, Precision::f64));
    }
    nan += verdict.nan ? 1 : 0;
    if (!verdict.told) continue;
    ++count;
    for (const Node* node : post_order(e)) ++told[static_cast<std::size_t>(node->op)];
  }
  EXPECT_LT(nan, count / 100);
  for (int i = 0; i < kOpCount; ++i)
    EXPECT_GE(told[static_cast<std::size_t>(i)], judged / 80) << info(static_cast<Op>(i)).name;
}

Dims clamped_indices(const CaptureGradient& gradient, const Dims& shape, const Bindings& bindings,
                     const Element& element) {
  Dims index;
  for (int axis = 0; axis < shape.size(); ++axis) {
    const Interpreter interpret(gradient.indices[static_cast<std::size_t>(axis)], bindings, Precision::f64);
    index.push_back(std::clamp<std::int64_t>(std::get<std::int32_t>(interpret(element)), 0, shape[axis] - 1));
  }
  return index;
}

/// The gradient of one element of a capture is the sum over all the places that read it.
Verdict judge_captures(const Expr& e, const Element& element, MovableCaptures& captures) {
  const std::vector<CaptureGradient> gradients = d_captures(e, Precision::f64);
  if (gradients.empty()) return {};
  const std::string& name = gradients.front().capture.name;
  const Dims at = clamped_indices(gradients.front(), captures.shape(name), captures.bindings(), element);
  double sum = 0;
  for (const CaptureGradient& gradient : gradients) {
    verify(gradient.gradient);
    if (gradient.capture.name != name) continue;
    if (!(clamped_indices(gradient, captures.shape(name), captures.bindings(), element) == at)) continue;
    sum += Interpreter(gradient.gradient, captures.bindings(), Precision::f64).real(element);
  }
  double& moving = captures.element(name, at);
  const double start = moving;
  const Verdict verdict = judge(e, sum, 1e-3 * std::max(1.0, std::abs(start)), [&](const Expr& x, double by) {
    moving = start + by;
    return Interpreter(x, captures.bindings(), Precision::f64)(element);
  });
  moving = start;
  return verdict;
}

TEST(Differentiate, CapturesAgreeWithFiniteDifferences) {
  RandomExpressions random(5, smooth_vocabulary());
  MovableCaptures captures(random.bindings());
  int count = 0;
  int nan = 0;
  for (int drawn = 0; count < heddle::test::random_cases(4000); ++drawn) {
    ASSERT_LT(drawn, 100000) << "too few smooth points";
    const Expr e = with_f64_captures(random.draw(ExprType::f32, 2 + random.below(14)));
    const Element element = mild_element(random);
    const Verdict verdict = judge_captures(e, element, captures);
    if (!verdict.fault.empty()) {
      const auto fails = [&](const Expr& x) { return !judge_captures(x, element, captures).fault.empty(); };
      const Expr small = test::shrink(e, fails);
      FAIL() << print(small) << "\n" << judge_captures(small, element, captures).fault;
    }
    count += verdict.told ? 1 : 0;
    nan += verdict.nan ? 1 : 0;
  }
  EXPECT_LT(nan, count / 100);
}

/// Draws until this many params were judged.
TEST(Differentiate, ParamsAgreeWithFiniteDifferences) {
  RandomExpressions random(6, smooth_vocabulary());
  int count = 0;
  for (int drawn = 0; count < heddle::test::random_cases(1000); ++drawn) {
    ASSERT_LT(drawn, 100000) << "too few smooth points";
    const Expr e = random.draw(ExprType::f32, 2 + random.below(14));
    const Element element = mild_element(random);
    Bindings bindings = random.bindings();
    for (const ParamGradient& gradient : d_params(e, Precision::f64)) {
      verify(gradient.gradient);
      double& moving = std::get<double>(bindings.params.at(gradient.name));
      const double start = moving;
      const double derivative = Interpreter(gradient.gradient, bindings, Precision::f64).real(element);
      const Verdict verdict =
          judge(e, derivative, 1e-3 * std::max(1.0, std::abs(start)), [&](const Expr& x, double by) {
            moving = start + by;
            return Interpreter(x, bindings, Precision::f64)(element);
          });
      moving = start;
      ASSERT_EQ(verdict.fault, "") << print(e);
      count += verdict.told ? 1 : 0;
    }
  }
}

// Without simplification the same values, for whoever must not depend on the simplifier.
TEST(Differentiate, UnsimplifiedDerivativesAreTheSame) {
  RandomExpressions random(7, smooth_vocabulary());
  int finite = 0;
  for (int drawn = 0; drawn < 2000; ++drawn) {
    const Expr e = random.draw(ExprType::f32, 2 + random.below(14));
    const Element element = mild_element(random);
    const auto value = [&](const Expr& x) { return Interpreter(x, random.bindings(), Precision::f64).real(element); };
    const double raw = value(d_score(e, std::nullopt));
    const double simple = value(d_score(e, Precision::f64));
    if (!std::isfinite(raw) || !std::isfinite(simple)) continue;
    EXPECT_NEAR(raw, simple, 1e-9 * std::max(1.0, std::abs(raw))) << print(e);
    ++finite;
  }
  EXPECT_GT(finite, 1800);
  EXPECT_EQ(print(d_score(parse("score * 3.0 + 0.0 * score"), std::nullopt)), "3.0 * 1.0 + 0.0 * 1.0");
}

Symbols symbols() {
  Symbols symbols;
  symbols.captures["bias"] = {DType::f32, 2};
  symbols.captures["slopes"] = {DType::bf16, 1};
  symbols.captures["doc"] = {DType::i32, 1};
  return symbols;
}

void expect_derivative(std::string_view text, std::string_view expected) {
  EXPECT_EQ(print(d_score(parse(text, symbols()), Precision::f32)), expected) << text;
}

TEST(Differentiate, GivesShortResults) {
  expect_derivative("score", "1.0");
  expect_derivative("score + slopes[h] * (kv_idx - q_idx)", "1.0");
  expect_derivative("score * 3.0 + 1.0", "3.0");
  expect_derivative("slopes[h]", "0.0");
  expect_derivative("f32(i32(score))", "0.0");
  expect_derivative("where(q_idx >= kv_idx, score, -inf)", "where(q_idx >= kv_idx, 1.0, 0.0)");
  expect_derivative("score * score", "score * 2.0");
  expect_derivative("exp(score)", "exp(score)");
  expect_derivative("-score", "-1.0");
  expect_derivative("floor(score)", "0.0");
}

double derivative_at(std::string_view text, double score) {
  Element element;
  element.score = score;
  return Interpreter(d_score(parse(text), Precision::f64), {}, Precision::f64).real(element);
}

TEST(Differentiate, TiesAndKinks) {
  EXPECT_EQ(derivative_at("max(score, 0.0)", 0), 0.5);
  EXPECT_EQ(derivative_at("min(score, 0.0)", 0), 0.5);
  EXPECT_EQ(derivative_at("max(0.0, 3.0 * score)", 0), 1.5);
  EXPECT_EQ(derivative_at("max(score, score)", 2), 1);
  EXPECT_EQ(derivative_at("clip(score, -1.0, 1.0)", 1), 0.5);
  EXPECT_EQ(derivative_at("clip(score, -1.0, 1.0)", 0.5), 1);
  EXPECT_EQ(derivative_at("clip(score, -1.0, 1.0)", 1.5), 0);
  EXPECT_EQ(derivative_at("abs(score)", 0), 0);
  EXPECT_EQ(derivative_at("abs(score)", -2), -1);
  EXPECT_EQ(derivative_at("score % 2.0", 3), 1);
  EXPECT_EQ(derivative_at("1.0 % score", 0.001), -999) << "1 / 0.001 rounds to 1000";
  EXPECT_EQ(derivative_at("max(max(score, 2.0 * score), 2.0 * score)", 0), 1.75) << "as nested, not as simplified";
  EXPECT_EQ(derivative_at("where(score > 0.0, score, -2.0 * score)", 0), -2);
}

TEST(Differentiate, BranchesNotTakenDoNotComeThrough) {
  EXPECT_EQ(derivative_at("where(score > 0.0, log(score), 0.0)", 0), 0);
  EXPECT_EQ(derivative_at("sqrt(where(score > 0.0, score, 0.0))", -1), 0);
  EXPECT_EQ(derivative_at("log(where(score > 0.0, score, 0.0)) * 2.0", -1), 0);
  EXPECT_EQ(derivative_at("pow(where(score > 1.0, score, 0.0), 0.5)", 0.5), 0);
}

TEST(Differentiate, PowersAtTheirEdges) {
  EXPECT_EQ(derivative_at("pow(score, 2.0)", 0), 0);
  EXPECT_EQ(derivative_at("pow(score, 1.0)", 0), 1);
  EXPECT_EQ(derivative_at("pow(score, 0.0)", 0), 0);
  EXPECT_EQ(derivative_at("pow(score, 3.0)", -2), 12);
  EXPECT_EQ(derivative_at("pow(0.0, score)", 2), 0);
  EXPECT_EQ(derivative_at("pow(score - score, score)", 3), 0);
}

TEST(Differentiate, CapturesNameTheirPlaces) {
  const Expr e = parse(
      "score * slopes[h] + bias[h, kv_idx] + slopes[doc[q_idx]] + f32(doc[kv_idx]) + floor(bias[b, 0])", symbols());
  const std::vector<CaptureGradient> gradients = d_captures(e, Precision::f32);
  ASSERT_EQ(gradients.size(), 3U);
  EXPECT_EQ(gradients[0].capture, (CaptureDecl{"slopes", DType::bf16, 1}));
  EXPECT_EQ(print(gradients[0].gradient), "score");
  EXPECT_EQ(print(gradients[0].indices[0]), "h");
  EXPECT_EQ(gradients[1].capture.name, "bias");
  EXPECT_EQ(print(gradients[1].gradient), "1.0");
  EXPECT_EQ(print(gradients[1].indices[1]), "kv_idx");
  EXPECT_EQ(print(gradients[2].indices[0]), "doc[q_idx]");
}

TEST(Differentiate, AtGivesNothingWhereItFills) {
  const std::vector<double> slopes = {3, 5};
  Bindings bindings;
  bindings.captures["slopes"] = ConstTensorView(slopes.data(), DType::f64, Dims{2});
  const Expr e = parse("at(slopes, q_idx, score * 7.0) * 2.0", Symbols(bindings));
  const auto gradients = d_captures(e, Precision::f64);
  ASSERT_EQ(gradients.size(), 1U);
  for (const int q : {-1, 0, 1, 2}) {
    Element element;
    element[Leaf::q_idx] = q;
    const bool inside = q == 0 || q == 1;
    EXPECT_EQ(Interpreter(gradients[0].gradient, bindings, Precision::f64).real(element), inside ? 2 : 0) << q;
    EXPECT_EQ(Interpreter(d_score(e, Precision::f64), bindings, Precision::f64).real(element), inside ? 0 : 14) << q;
  }
}

}  // namespace
}  // namespace heddle::expr
