// Derivatives against finite differences in double, at points where the function is smooth, and at kinks by hand.
#include "expr/differentiate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "expr/random_expression.h"
#include "expr/verify.h"

namespace heddle::expr {
namespace {

using test::RandomExpressions;

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

/// What a point says about a derivative: nothing where the function is not smooth, or where the derivative is NaN: at
/// sqrt(0 * score), say, the chain rule meets 0 * infinity. Such points must be rare.
struct Verdict {
  bool told = false;
  bool nan = false;
  std::string fault;
};
Verdict compare(const std::optional<Slope>& slope, double derivative) {
  if (!slope) return {};
  if (std::isnan(derivative)) return {false, true, {}};
  if (std::abs(slope->value - derivative) <= slope->error) return {true, false, {}};
  return {true, false,
          fmt::format("the derivative is {}, but the slope {} within {}", derivative, slope->value, slope->error)};
}

/// What must stay as it is around a point for e to be smooth there: its whole numbers and its comparisons. Finite
/// differences alone take a staircase of small steps for a slope.
std::vector<Expr> steps_of(const Expr& e) {
  std::vector<Expr> steps;
  for (const Node* node : post_order(e)) {
    if (node->operands.empty() || node->operands[0]->type != ExprType::f32) continue;
    const bool rounds = node->op == Op::floor || node->op == Op::ceil || node->op == Op::round || node->op == Op::trunc;
    const bool whole = rounds || node->op == Op::floor_div || node->op == Op::to_i32 || node->op == Op::sign;
    if (whole || info(node->op).kind == Kind::cmp || info(node->op).kind == Kind::test) {
      steps.push_back(with_operands(*node, std::vector<Expr>(node->operands.begin(), node->operands.end())));
    }
    if (node->op == Op::mod) steps.push_back(floor_div(operand(*node, 0), operand(*node, 1)));
  }
  return steps;
}

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
  // Beside a large number the step is lost in rounding, and says nothing.
  constexpr double kLarge = 1e6;
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
  int count = 0;
  int nan = 0;
  for (int drawn = 0; count < 40000; ++drawn) {
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
  for (int i = 0; i < kOpCount; ++i) EXPECT_GE(told[static_cast<std::size_t>(i)], 500) << info(static_cast<Op>(i)).name;
}

/// The random expressions' captures in f64, so that an element can be moved a little.
class MovableCaptures {
 public:
  explicit MovableCaptures(const Bindings& given) : bindings_(given) {
    for (auto& [name, view] : bindings_.captures) {
      if (!is_floating(view.dtype)) continue;
      tensors_[name] = copy(view, DType::f64);
      view = tensors_[name];
    }
  }
  const Bindings& bindings() const { return bindings_; }
  double& element(const std::string& name, const Dims& index) {
    const Tensor& tensor = tensors_.at(name);
    const Dims strides = contiguous_strides(tensor.shape());
    std::int64_t offset = 0;
    for (int axis = 0; axis < index.size(); ++axis) offset += index[axis] * strides[axis];
    return static_cast<double*>(tensor.data())[offset];
  }
  const Dims& shape(const std::string& name) const { return tensors_.at(name).shape(); }

 private:
  Bindings bindings_;
  std::map<std::string, Tensor> tensors_;
};

Expr with_f64_captures(const Expr& e) {
  return rewrite(e, [](const Node& node, std::span<const Expr> operands) {
    if (info(node.op).kind != Kind::read || node.type != ExprType::f32) return with_operands(node, operands);
    return make(node.op, node.type, operands, CaptureDecl{node.capture().name, DType::f64, node.capture().rank});
  });
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
  for (int drawn = 0; count < 4000; ++drawn) {
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
