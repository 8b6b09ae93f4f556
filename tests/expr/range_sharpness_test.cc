// Ranges that must be exact, so that block masks cost their boundary and not their area.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "expr/range_bounds.h"
#include "expr/ranges.h"

namespace heddle::expr {
namespace {

constexpr double kIntMax = std::numeric_limits<std::int32_t>::max();
constexpr double kIntMin = std::numeric_limits<std::int32_t>::min();

const Range kTrue = Range::boolean(false, true);
const Range kFalse = Range::boolean(true, false);
const Range kOpen = Range::boolean(true, true);

Range integers(double lo, double hi) { return {lo, hi, false}; }

LeafRanges box(Range q, Range kv) {
  LeafRanges leaves;
  leaves[Leaf::score] = Range::any(ExprType::f32);
  leaves[Leaf::q_idx] = q;
  leaves[Leaf::kv_idx] = kv;
  return leaves;
}

Range range_of(const Expr& e, const LeafRanges& leaves) { return RangeAnalysis(e, Precision::f32, nullptr)(leaves); }
Range range_of(std::string_view text, Range q, Range kv) { return range_of(parse(text), box(q, kv)); }
Range range_of_score(std::string_view text, Range score) {
  LeafRanges leaves = box({}, {});
  leaves[Leaf::score] = score;
  return range_of(parse(text), leaves);
}

/// Compares with the dense mask over blocks of 8 x 8 of a 64 x 64 matrix: what is uniform must be decided.
void expect_sharp(std::string_view text, int size = 64, int block = 8) {
  const Expr mask = parse(text);
  const Interpreter interpret(mask, {}, Precision::f32);
  const RangeAnalysis analysis(mask, Precision::f32, nullptr);
  for (int q = 0; q < size; q += block) {
    for (int kv = 0; kv < size; kv += block) {
      bool any_true = false;
      bool any_false = false;
      Element element;
      for (int i = 0; i < block * block; ++i) {
        element[Leaf::q_idx] = q + i / block;
        element[Leaf::kv_idx] = kv + i % block;
        (interpret.boolean(element) ? any_true : any_false) = true;
      }
      EXPECT_EQ(analysis(box(integers(q, q + block - 1), integers(kv, kv + block - 1))),
                Range::boolean(any_false, any_true))
          << text << " at " << q << ", " << kv;
    }
  }
}

TEST(RangeSharpness, CausalInEverySpelling) {
  expect_sharp("q_idx >= kv_idx");
  expect_sharp("kv_idx <= q_idx");
  expect_sharp("not (kv_idx > q_idx)");
  expect_sharp("not q_idx < kv_idx");
  expect_sharp("q_idx - kv_idx >= 0");
  expect_sharp("2*q_idx - kv_idx >= q_idx");
  expect_sharp("kv_idx - q_idx < 1");
  expect_sharp("3*(q_idx - kv_idx) + 2 >= 0");
  expect_sharp("-(kv_idx - q_idx) > -1");
}

TEST(RangeSharpness, Windows) {
  expect_sharp("q_idx - kv_idx <= 10 and kv_idx <= q_idx");
  expect_sharp("abs(q_idx - kv_idx) <= 10");
  expect_sharp("kv_idx <= q_idx and not (q_idx - kv_idx > 10)");
  expect_sharp("q_idx < 8 or kv_idx < 5 or abs(q_idx - kv_idx) <= 3");
  expect_sharp("0 <= q_idx - kv_idx < 20");
  expect_sharp("kv_idx < 13 or q_idx >= kv_idx");
}

TEST(RangeSharpness, Dilated) {
  expect_sharp("(q_idx - kv_idx) % 64 == 0");
  expect_sharp("(q_idx - kv_idx) % 32 < 16");
  expect_sharp("(kv_idx - q_idx) // 16 == 1");
  // Elements of one class modulo the step, no matter where: not an interval, but never equal to another class.
  EXPECT_EQ(range_of("(2*q_idx - 4*kv_idx) == 1", integers(0, 100), integers(0, 100)), kFalse);
  EXPECT_EQ(range_of("6*q_idx + 1 != 3*kv_idx", integers(0, 100), integers(0, 100)), kTrue);
}

TEST(RangeSharpness, Neighbourhoods) {
  expect_sharp("abs(q_idx // 8 - kv_idx // 8) <= 1 and abs(q_idx % 8 - kv_idx % 8) <= 8");
  expect_sharp("q_idx // 16 == kv_idx // 16");
  expect_sharp("q_idx // 16 >= kv_idx // 16");
  expect_sharp("abs(q_idx % 16 - kv_idx % 16) <= 2 and q_idx // 16 == kv_idx // 16", 64, 4);
  EXPECT_EQ(range_of("q_idx % 16", integers(35, 40), {}), integers(3, 8));
  EXPECT_EQ(range_of("q_idx % 16", integers(30, 40), {}), integers(0, 15));
  EXPECT_EQ(range_of("q_idx // 16", integers(30, 40), {}), integers(1, 2));
  EXPECT_EQ(range_of("q_idx % -16", integers(35, 40), {}), integers(-13, -8));
  EXPECT_EQ(range_of("(q_idx - 50) // 16", integers(35, 40), {}), integers(-1, -1));
  EXPECT_EQ(range_of("q_idx % kv_idx", integers(3, 4), integers(5, 9)), integers(3, 4));
  EXPECT_EQ(range_of("q_idx // kv_idx", integers(3, 4), integers(-1, 1)), integers(-4, 4));
}

TEST(RangeSharpness, Bits) {
  expect_sharp("q_idx >> 4 == kv_idx >> 4");
  expect_sharp("(q_idx >> 3) & 1 == 0 and kv_idx >> 5 == 1");
  expect_sharp("q_idx << 1 > kv_idx");
  expect_sharp("(q_idx ^ kv_idx) < 8");
  expect_sharp("(q_idx & 48) == (kv_idx & 48)");
  expect_sharp("(q_idx | 15) >= 31");
  expect_sharp("~q_idx >= ~kv_idx");
  EXPECT_EQ(range_of("q_idx >> 4", integers(30, 70), {}), integers(1, 4));
  EXPECT_EQ(range_of("q_idx >> 4", integers(-33, 70), {}), integers(-3, 4));
  EXPECT_EQ(range_of("q_idx >> 40", integers(-33, 70), {}), integers(-1, 0));
  EXPECT_EQ(range_of("q_idx >> kv_idx", integers(64, 70), integers(1, 3)), integers(8, 35));
  EXPECT_EQ(range_of("q_idx >> kv_idx", integers(64, 70), integers(-1, 3)), integers(0, 70));
  EXPECT_EQ(range_of("q_idx << 4", integers(-3, 7), {}), integers(-48, 112));
  EXPECT_EQ(range_of("q_idx << 31", integers(0, 0), {}), integers(0, 0));
  EXPECT_EQ(range_of("q_idx << 30", integers(2, 3), {}), integers(kIntMin, -1073741824));
  EXPECT_EQ(range_of("q_idx << 30", integers(0, 2), {}), integers(kIntMin, kIntMax));
  EXPECT_EQ(range_of("q_idx << kv_idx", integers(1, 3), integers(2, 4)), integers(4, 48));
  EXPECT_EQ(range_of("q_idx << kv_idx", integers(1, 3), integers(31, 33)), integers(kIntMin, kIntMax));
  EXPECT_EQ(range_of("q_idx << kv_idx", integers(1, 3), integers(32, 33)), integers(0, 0));
  EXPECT_EQ(range_of("q_idx & 31", integers(64, 66), {}), integers(0, 2));
  EXPECT_EQ(range_of("q_idx & 31", integers(60, 66), {}), integers(0, 31));
  EXPECT_EQ(range_of("q_idx & 31", integers(5, 7), {}), integers(5, 7));
  EXPECT_EQ(range_of("q_idx & -16", integers(35, 70), {}), integers(32, 64));
  EXPECT_EQ(range_of("q_idx | 7", integers(8, 20), {}), integers(15, 23));
  EXPECT_EQ(range_of("q_idx ^ 1", integers(8, 9), {}), integers(8, 9));
  EXPECT_EQ(range_of("~q_idx", integers(-3, 9), {}), integers(-10, 2));
  EXPECT_EQ(range_of("q_idx + ~q_idx", integers(-3, 9), {}), integers(-1, -1)) << "~x is -1 - x";
  EXPECT_EQ(range_of("sign(q_idx)", integers(-3, 9), {}), integers(-1, 1));
  EXPECT_EQ(range_of("sign(q_idx)", integers(0, 9), {}), integers(0, 1));
}

TEST(RangeSharpness, WholeNumbersAndTests) {
  EXPECT_EQ(range_of_score("ceil(score)", {-1.5, 2.5, true}), (Range{-1, 3, true}));
  EXPECT_EQ(range_of_score("round(score)", {-1.5, 2.5, false}), (Range{-2, 2, false}));
  EXPECT_EQ(range_of_score("trunc(score)", {-1.5, 2.5, false}), (Range{-1, 2, false}));
  EXPECT_EQ(range_of_score("sign(score)", {-1.5, 0, true}), (Range{-1, 0, true}));
  EXPECT_EQ(range_of_score("isnan(score)", {-1.5, INFINITY, false}), kFalse);
  EXPECT_EQ(range_of_score("isnan(score)", {-1.5, 0, true}), kOpen);
  EXPECT_EQ(range_of_score("isnan(score)", {INFINITY, -INFINITY, true}), kTrue);
  EXPECT_EQ(range_of_score("isinf(score)", {-1.5, 3e38, true}), kFalse);
  EXPECT_EQ(range_of_score("isinf(score)", {-1.5, INFINITY, false}), kOpen);
  EXPECT_EQ(range_of_score("isinf(score)", {-INFINITY, -INFINITY, false}), kTrue);
  EXPECT_EQ(range_of_score("isinf(score)", {INFINITY, INFINITY, true}), kOpen);
}

TEST(RangeSharpness, DocumentsThroughBounds) {
  const std::vector<std::int32_t> ids = {0, 0, 0, 1, 1, 2, 2, 2};
  Bindings bindings;
  bindings.captures["doc"] = ConstTensorView(ids.data(), DType::i32, Dims{8});
  const test::ExactBounds bounds(bindings.captures);
  const Expr mask = parse("doc[q_idx] == doc[kv_idx]", Symbols(bindings));
  const RangeAnalysis analysis(mask, Precision::f32, &bounds);
  EXPECT_EQ(analysis(box(integers(0, 2), integers(1, 2))), kTrue);
  EXPECT_EQ(analysis(box(integers(0, 2), integers(3, 7))), kFalse);
  EXPECT_EQ(analysis(box(integers(0, 3), integers(3, 4))), kOpen);
  EXPECT_EQ(analysis(box(integers(5, 90), integers(6, 7))), kTrue) << "indices past the end are clamped";
  const Expr outside = parse("at(doc, q_idx, -1) == -1", Symbols(bindings));
  EXPECT_EQ(RangeAnalysis(outside, Precision::f32, &bounds)(box(integers(8, 20), {})), kTrue);
  EXPECT_EQ(RangeAnalysis(outside, Precision::f32, &bounds)(box(integers(0, 7), {})), kFalse);
  EXPECT_EQ(RangeAnalysis(outside, Precision::f32, &bounds)(box(integers(7, 8), {})), kOpen);
}

TEST(RangeSharpness, CancellingTermsLeaveNoWidth) {
  EXPECT_EQ(range_of("q_idx - kv_idx - q_idx", integers(0, 9), integers(4, 5)), integers(-5, -4));
  EXPECT_EQ(range_of("q_idx * 7 - 6 * q_idx", integers(2, 9), {}), integers(2, 9));
  EXPECT_EQ(range_of("(q_idx * kv_idx) - kv_idx * 3 - (q_idx * kv_idx)", integers(0, 9), integers(1, 2)),
            integers(-6, -3));
  EXPECT_EQ(range_of("score - score", {}, {}), (Range{0, 0, true}));
  EXPECT_EQ(range_of("q_idx * q_idx", integers(-3, 2), {}), integers(0, 9));
}

TEST(RangeSharpness, WrappingIsFollowedThroughItsSum) {
  EXPECT_EQ(range_of("2147483647 + q_idx", integers(0, 0), {}), integers(kIntMax, kIntMax));
  EXPECT_EQ(range_of("2147483647 + q_idx", integers(1, 5), {}), integers(kIntMin, kIntMin + 4));
  EXPECT_EQ(range_of("2147483647 + q_idx", integers(0, 5), {}), integers(kIntMin, kIntMax));
  EXPECT_EQ(range_of("2147483647 + q_idx - 2147483647", integers(0, 5), {}), integers(0, 5));
  EXPECT_EQ(range_of("2147483647 + q_idx > 0", integers(1, 5), {}), kFalse) << "the sum wraps";
  EXPECT_EQ(range_of("2147483647 + q_idx > q_idx", integers(1, 5), {}), kFalse);
  EXPECT_EQ(range_of("2147483647 + q_idx > q_idx", integers(0, 5), {}), kOpen);
  EXPECT_EQ(range_of("2147483647 + q_idx == q_idx", integers(0, 5), {}), kFalse) << "whatever wraps";
  EXPECT_EQ(range_of("q_idx + 1 == kv_idx + 1", integers(0, kIntMax), integers(0, kIntMax)), kOpen);
  EXPECT_EQ(range_of("q_idx + 1 <= q_idx", integers(0, kIntMax), {}), kOpen);
  EXPECT_EQ(range_of("q_idx + 1 <= q_idx", integers(0, kIntMax - 1), {}), kFalse);
  // Modulo 2^32 an odd factor can be undone, an even one cannot.
  EXPECT_EQ(range_of("3 * q_idx == 3 * kv_idx + 1", integers(0, kIntMax), integers(0, kIntMax)), kOpen);
  EXPECT_EQ(range_of("6 * q_idx == 6 * kv_idx + 1", integers(0, kIntMax), integers(0, kIntMax)), kFalse);
  EXPECT_EQ(range_of("65536 * q_idx * 65536", integers(0, kIntMax), {}), integers(0, 0));
  EXPECT_EQ(range_of("abs(q_idx)", integers(kIntMin, 0), {}), integers(kIntMin, kIntMax));
  EXPECT_EQ(range_of("q_idx // -1", integers(kIntMin, kIntMin), {}), integers(kIntMin, kIntMax));
}

TEST(RangeSharpness, OppositesAndTheSame) {
  const Range wide = integers(0, kIntMax);
  EXPECT_EQ(range_of("q_idx < kv_idx or q_idx >= kv_idx", wide, wide), kTrue);
  EXPECT_EQ(range_of("q_idx < kv_idx and kv_idx <= q_idx", wide, wide), kFalse);
  EXPECT_EQ(range_of("(q_idx < kv_idx) ^ (not q_idx < kv_idx)", wide, wide), kTrue);
  EXPECT_EQ(range_of("(q_idx == kv_idx) ^ (q_idx == kv_idx)", wide, wide), kFalse);
  EXPECT_EQ(range_of("q_idx - kv_idx <= 5 or 2*kv_idx <= 2*q_idx - 3", integers(0, 99), integers(0, 99)), kTrue);
  EXPECT_EQ(range_of("q_idx - kv_idx < 2 and not (q_idx < kv_idx + 2)", integers(0, 99), integers(0, 99)), kFalse);
  EXPECT_EQ(range_of("q_idx + kv_idx > 5 or q_idx + kv_idx < 9", wide, wide), kOpen) << "the sum wraps";
  EXPECT_EQ(range_of_score("score < 1 or score >= 1", Range::any(ExprType::f32)), kOpen) << "neither, when NaN";
  EXPECT_EQ(range_of_score("score == 1 or score != 1", Range::any(ExprType::f32)), kTrue);
}

TEST(RangeSharpness, NanComparesFalse) {
  EXPECT_EQ(range_of("nan < 1.0", {}, {}), kFalse);
  EXPECT_EQ(range_of("nan != 1.0", {}, {}), kTrue);
  EXPECT_EQ(range_of_score("score <= inf", Range::any(ExprType::f32)), kOpen);
  EXPECT_EQ(range_of_score("score <= 2", {0, 1, true}), kOpen);
  EXPECT_EQ(range_of_score("score <= 2", {0, 1, false}), kTrue);
  EXPECT_EQ(range_of_score("score > 2", {0, 1, true}), kFalse);
  EXPECT_EQ(range_of_score("log(score) < 0", {-2, -1, false}), kFalse);
  EXPECT_EQ(range_of_score("i32(log(score))", {-2, -1, false}), Range::point(0));
  EXPECT_TRUE(range_of_score("score - inf", {0, INFINITY, false}).nan);
  EXPECT_FALSE(range_of_score("score - inf", {0, 1e30, false}).nan);
  EXPECT_TRUE(range_of_score("score * inf", {0, 1, false}).nan);
  EXPECT_FALSE(range_of_score("score * inf", {1, 2, false}).nan);
}

TEST(RangeSharpness, RealsKeepTheirEnds) {
  EXPECT_EQ(range_of_score("score * 2 + 1", {-1, 3, false}), (Range{-1, 7, false}));
  EXPECT_EQ(range_of_score("1 / score", {2, 4, false}), (Range{0.25, 0.5, false}));
  EXPECT_EQ(range_of_score("score * score", {-1, 3, false}), (Range{0, 9, false}));
  EXPECT_EQ(range_of_score("sqrt(abs(score))", {-4, 1, false}), (Range{0, 2, false}));
  EXPECT_EQ(range_of_score("score % 4", {9, 11, false}), (Range{1, 3, false}));
  EXPECT_EQ(range_of_score("score % -4", {9, 11, false}), (Range{-3, -1, false}));
  EXPECT_EQ(range_of_score("score % 4", {7, 9, false}), (Range{0, 4, false}));
  EXPECT_EQ(range_of_score("score % 4", {-1e30, 1e30, false}), (Range{0, 4, false}));
  EXPECT_EQ(range_of_score("score % inf", {1, 2, false}), (Range{1, 2, false}));
  EXPECT_EQ(range_of_score("score % inf", {-1, 2, false}), (Range{0, INFINITY, false}));
  EXPECT_EQ(range_of_score("5.0 % score", {6, 7, false}), (Range{0, 5, false}));
  EXPECT_EQ(range_of_score("-5.0 % score", {-7, -6, false}), (Range{-5, 0, false}));
  EXPECT_TRUE(range_of_score("5.0 % score", {-1, 2, false}).nan);
  EXPECT_EQ(range_of("f32(q_idx - kv_idx) * 0.5", integers(0, 7), integers(0, 7)), (Range{-3.5, 3.5, false}));
  EXPECT_EQ(range_of("where(q_idx >= kv_idx, 1.0, -inf)", integers(8, 9), integers(0, 8)), Range::point(1));
  EXPECT_EQ(range_of("random_uniform(1, b, h, q_idx, kv_idx) < 1", {}, {}), kTrue);
  EXPECT_EQ(range_of("random_uniform(1, b, h, q_idx, kv_idx) >= 0", {}, {}), kTrue);
}

TEST(RangeSharpness, ChoicesByABoundAreBounded) {
  const Range all = {-INFINITY, INFINITY, false};
  EXPECT_EQ(range_of_score("where(score < -20.0, -20.0, score)", all), (Range{-20, INFINITY, false}));
  EXPECT_EQ(range_of_score("where(score <= 0.0, 0.0, score)", all), (Range{0, INFINITY, false}));
  EXPECT_EQ(range_of_score("where(5.0 < score, 5.0, score)", all), (Range{-INFINITY, 5, false}));
  EXPECT_EQ(range_of("where(score >= 5.0, 5.0, where(-5.0 > score, -5.0, score))", {}, {}).hi, INFINITY);
  const Expr above = where(leaf::score() < -5.0, -5.0, leaf::score());
  LeafRanges leaves;
  leaves[Leaf::score] = all;
  EXPECT_EQ(range_of(where(above >= 5.0, 5.0, above), leaves), (Range{-5, 5, false}));
  EXPECT_TRUE(range_of_score("where(score < -20.0, -20.0, score)", Range::any(ExprType::f32)).nan);
  // The first gives -20 for NaN, and the second has the other branch.
  EXPECT_EQ(range_of_score("where(score >= -20.0, score, -20.0)", all), all);
  EXPECT_EQ(range_of_score("where(score < -20.0, 20.0, score)", all), all);
  EXPECT_EQ(range_of_score("where(score > -20.0, -20.0, score)", all), (Range{-INFINITY, -20, false}));
}

TEST(RangeSharpness, TranscendentalsAreNear) {
  const auto near = [](std::string_view text, Range score, double lo, double hi) {
    const Range range = range_of_score(text, score);
    EXPECT_LE(range.lo, lo) << text;
    EXPECT_GE(range.lo, lo - 1e-5 * std::abs(lo)) << text;
    EXPECT_GE(range.hi, hi) << text;
    EXPECT_LE(range.hi, hi + 1e-5 * std::abs(hi)) << text;
    EXPECT_FALSE(range.nan) << text;
  };
  near("30 * tanh(score / 30)", Range{-INFINITY, INFINITY, false}, -30, 30);
  near("exp(score)", {-1, 1, false}, std::exp(-1), std::exp(1));
  near("exp2(score)", {-2, 3, false}, 0.25, 8);
  near("log2(score)", {0.25, 8, false}, -2, 3);
  near("sigmoid(score)", {-INFINITY, 0, false}, 0, 0.5);
  near("sin(score)", {0.1, 1.7, false}, std::sin(0.1), 1);
  near("sin(score)", {0.1, 0.2, false}, std::sin(0.1), std::sin(0.2));
  near("cos(score)", {-0.1, 0.2, false}, std::cos(0.2), 1);
  near("cos(score)", {3, 4, false}, -1, std::cos(4));
  near("sin(score)", {0, 1e30, false}, -1, 1);
  near("pow(score, 2)", {-3, 2, false}, 0, 9);
  near("pow(score, 3.0)", {-3, 2, false}, -27, 8);
  near("pow(2, score)", {-1, 3, false}, 0.5, 8);
  near("expm1(score)", {-1, 2, false}, std::expm1(-1), std::expm1(2));
  near("log1p(score)", {-0.5, 3, false}, std::log1p(-0.5), std::log1p(3));
  near("tan(score)", {-1.5, 1.5, false}, std::tan(-1.5), std::tan(1.5));
  near("tan(score)", {1.75, 4.5, false}, std::tan(1.75), std::tan(4.5));
  near("atan(score)", {-INFINITY, 1, false}, -std::numbers::pi / 2, std::numbers::pi / 4);
  near("rsqrt(score)", {4, 16, false}, 0.25, 0.5);
  near("erf(score)", {0, INFINITY, false}, 0, 1);
  near("erfc(score)", {-INFINITY, INFINITY, false}, 0, 2);
  near("erfc(score)", {-0.5, 3, false}, std::erfc(3), std::erfc(-0.5));
  EXPECT_TRUE(range_of_score("pow(score, 0.5)", {-1, 4, false}).nan);
  EXPECT_TRUE(range_of_score("log1p(score)", {-1.5, 4, false}).nan);
  EXPECT_TRUE(range_of_score("tan(score)", {0, INFINITY, false}).nan);
  EXPECT_EQ(range_of_score("tan(score)", {1, 2, false}), (Range{-INFINITY, INFINITY, false})) << "a pole lies between";
}

TEST(RangeSharpness, UnknownCapturesHaveTheRangeOfTheirType) {
  Symbols symbols;
  symbols.captures["bias"] = {DType::f32, 1};
  symbols.captures["open"] = {DType::boolean, 1};
  symbols.params["n"] = ExprType::i32;
  EXPECT_EQ(range_of(parse("bias[q_idx]", symbols), box({}, {})), Range::any(ExprType::f32));
  EXPECT_EQ(range_of(parse("open[q_idx]", symbols), box({}, {})), kOpen);
  EXPECT_EQ(range_of(parse("n - n + 1", symbols), box({}, {})), Range::point(1));
  EXPECT_EQ(range_of(parse("n", symbols), box({}, {})), Range::any(ExprType::i32));
}

}  // namespace
}  // namespace heddle::expr
