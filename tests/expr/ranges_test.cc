// Every value that the interpreter gives lies in the range: random expressions over random boxes.
#include "expr/ranges.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "expr/random_expression.h"
#include "expr/range_bounds.h"
#include "heddle/error.h"
#include "sample.h"

namespace heddle::expr {
namespace {

using test::ExactBounds;
using test::RandomExpressions;

struct Box {
  LeafRanges leaves;
  std::vector<Element> samples;
};

std::int32_t between(RandomExpressions& random, const Range& range) {
  const double at = range.lo + random.unit() * (range.hi - range.lo + 1);
  return static_cast<std::int32_t>(std::min(at, range.hi));
}

Range random_index_range(RandomExpressions& random, std::int32_t start) {
  constexpr double kLargest = std::numeric_limits<std::int32_t>::max();
  if (random.below(40) == 0) return {kLargest - random.below(3), kLargest, false};
  if (random.below(40) == 0) return {0, kLargest, false};
  constexpr std::array<int, 6> widths = {0, 0, 1, 7, 63, 300};
  const int width = widths[static_cast<std::size_t>(random.below(static_cast<int>(widths.size())))];
  return {static_cast<double>(start), static_cast<double>(start + width), false};
}

Range random_score_range(RandomExpressions& random, double start) {
  if (random.below(4) == 0 || std::isnan(start)) return Range::any(ExprType::f32);
  const double width = random.below(2) == 0 ? 0 : random.unit() * 4;
  return {start, static_cast<float>(start + width), false};
}

/// Corners come first: each index takes one of its ends.
Element random_sample(RandomExpressions& random, const LeafRanges& leaves, bool corner) {
  Element element;
  for (int i = 1; i < kLeafCount; ++i) {
    const Range& range = leaves.range[static_cast<std::size_t>(i)];
    const double end = random.below(2) == 0 ? range.lo : range.hi;
    element.index[static_cast<std::size_t>(i)] = corner ? static_cast<std::int32_t>(end) : between(random, range);
  }
  const Range& score = leaves[Leaf::score];
  if (score.nan) {
    constexpr std::array<double, 6> scores = {NAN, INFINITY, -INFINITY, 0.0, -1.5, 1e30};
    element.score = scores[static_cast<std::size_t>(random.below(static_cast<int>(scores.size())))];
  } else {
    const double unit = random.unit();
    const bool at_end = corner || score.is_point();  // between infinities of one sign there is nothing
    const double at = at_end ? (random.below(2) == 0 ? score.lo : score.hi) : score.lo + unit * (score.hi - score.lo);
    element.score = std::clamp<double>(static_cast<float>(at), score.lo, score.hi);
  }
  return element;
}

Box random_box(RandomExpressions& random, int samples) {
  Box box;
  const Element start = random.element();
  box.leaves[Leaf::score] = random_score_range(random, start.score);
  for (int i = 1; i < kLeafCount; ++i) {
    box.leaves.range[static_cast<std::size_t>(i)] =
        random_index_range(random, start.index[static_cast<std::size_t>(i)]);
  }
  for (int i = 0; i < samples; ++i) box.samples.push_back(random_sample(random, box.leaves, 2 * i < samples));
  return box;
}

double as_double(const Value& value) {
  return std::visit([](auto x) { return static_cast<double>(x); }, value);
}

/// The first sample whose value leaves the range, as a sentence; empty when there is none.
std::string escape(const Expr& e, const Box& box, const Bindings& bindings, Precision precision) {
  const ExactBounds bounds(bindings.captures);
  const Range range = RangeAnalysis(bind_params(e, bindings), precision, &bounds)(box.leaves);
  const Interpreter interpret(e, bindings, precision);
  for (const Element& element : box.samples) {
    const double value = as_double(interpret(element));
    if (range.contains(value)) continue;
    return fmt::format("{} is outside [{}, {}]{} at score {}, indices {}", value, range.lo, range.hi,
                       range.nan ? " or NaN" : "", element.score, fmt::join(element.index, " "));
  }
  return {};
}

TEST(Ranges, HoldEveryValueOfRandomExpressions) {
  RandomExpressions random(1);
  std::array<int, kOpCount> drawn{};
  int decided = 0;
  int booleans = 0;
  const int count = heddle::test::random_cases(20000);
  for (int i = 0; i < count; ++i) {
    const Expr e = random.draw();
    const Box box = random_box(random, 24);
    for (const Node* node : post_order(e)) ++drawn[static_cast<std::size_t>(node->op)];
    for (const Precision precision : {Precision::f32, Precision::f64}) {
      const auto fails = [&](const Expr& x) { return !escape(x, box, random.bindings(), precision).empty(); };
      if (!fails(e)) continue;
      const Expr small = test::shrink(e, fails);
      FAIL() << print(small) << "\n" << escape(small, box, random.bindings(), precision);
    }
    if (e.type() != ExprType::boolean) continue;
    ++booleans;
    const ExactBounds bounds(random.bindings().captures);
    decided += RangeAnalysis(bind_params(e, random.bindings()), Precision::f32, &bounds)(box.leaves).is_point() ? 1 : 0;
  }
  for (int i = 0; i < kOpCount; ++i) {
    EXPECT_GE(drawn[static_cast<std::size_t>(i)], count / 40) << info(static_cast<Op>(i)).name;
  }
  EXPECT_GT(decided, booleans / 2);  // a range that says nothing would pass all of the above
}

TEST(Ranges, OfAnEmptyExpressionAreRefused) { EXPECT_THROW(RangeAnalysis({}, Precision::f32, nullptr), Error); }

}  // namespace
}  // namespace heddle::expr
