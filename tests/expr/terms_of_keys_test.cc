// Terms that are linear in the key's index, or depend on its distance from the query alone: each is found, and each is
// right wherever it claims to hold.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "expr/simplify.h"
#include "heddle/mods.h"

namespace heddle::expr {
namespace {

constexpr std::int32_t kQueries = 300, kKeys = 700;

LeafRanges ranges(std::int32_t keys = kKeys) {
  LeafRanges leaves;
  for (const Leaf leaf : {Leaf::b, Leaf::h}) leaves[leaf] = {0, 3, false};
  for (const Leaf leaf : {Leaf::q_idx, Leaf::q_token}) leaves[leaf] = {0, kQueries - 1, false};
  for (const Leaf leaf : {Leaf::kv_idx, Leaf::kv_token}) leaves[leaf] = {0, static_cast<double>(keys - 1), false};
  leaves[Leaf::score] = Range::any(ExprType::f32);
  return leaves;
}

/// Names for four heads, and a table of 33 rows and four columns.
Symbols symbols() {
  Symbols names;
  names.captures["slopes"] = {DType::f32, 1};
  names.captures["table"] = {DType::f32, 2};
  names.params["a"] = ExprType::f32;
  names.params["n"] = ExprType::i32;
  return names;
}
struct Values {
  Tensor slopes = Tensor::empty(DType::f32, {4}), table = Tensor::empty(DType::f32, {33, 4});
  Bindings bindings;
  Values() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (Tensor* tensor : {&slopes, &table}) {
      for (std::int64_t i = 0; i < tensor->count(); ++i) static_cast<float*>(tensor->data())[i] = normal(random);
    }
    bindings.captures = {{"slopes", slopes}, {"table", table}};
    bindings.params = {{"a", 1.5}, {"n", 3}};
  }
};

Expr read(const std::string& text) { return simplify(parse(text, symbols()), Precision::f32); }

/// The element with these indices, and all others in step.
Element element(std::int32_t h, std::int32_t q, std::int32_t kv) {
  Element at;
  at[Leaf::b] = 1;
  at[Leaf::h] = h;
  at[Leaf::q_idx] = at[Leaf::q_token] = q;
  at[Leaf::kv_idx] = at[Leaf::kv_token] = kv;
  return at;
}

TEST(SlopeOverKeys, IsWhatTheTermGrowsBy) {
  const Values values;
  for (const char* text :
       {"slopes[h] * (kv_idx - q_idx)", "f32(q_idx - kv_idx)", "2.5 * f32(3 * kv_idx + 7)", "-f32(kv_idx) / 4.0 + a",
        "f32(q_idx - kv_idx) / a", "f32(kv_idx - q_idx) * a - f32(2 * kv_idx) * slopes[h]",
        "f32(kv_token - q_token) + a", "f32(kv_idx) * 0.5 if q_idx > 10 else 1.0", "f32(q_idx)"}) {
    SCOPED_TRACE(text);
    const Expr e = read(text);
    const std::optional<Expr> slope = slope_over_keys(e, ranges());
    ASSERT_TRUE(slope);
    EXPECT_EQ(print(*slope).find("kv"), std::string::npos) << print(*slope);
    const Interpreter term(e, values.bindings, Precision::f32), growth(*slope, values.bindings, Precision::f32);
    for (const std::int32_t q : {0, 5, 11, 299}) {
      for (const std::int32_t kv : {0, 100, 571}) {
        for (const std::int32_t n : {1, 8, 127}) {
          const double first = term.real(element(2, q, kv)), grown = first + n * growth.real(element(2, q, kv));
          EXPECT_NEAR(term.real(element(2, q, kv + n)), grown, 1e-6 * (1 + std::abs(first) + std::abs(grown)));
        }
      }
    }
  }
}

TEST(SlopeOverKeys, IsNotThereWhereTheTermBends) {
  for (const char* text : {"f32(abs(kv_idx - q_idx))", "f32(kv_idx * kv_idx)", "f32(kv_idx // 2)",
                           "1.0 / f32(kv_idx + 1)", "table[kv_idx % 33, h]", "f32(kv_idx) if kv_idx > 3 else 0.0",
                           "exp(f32(kv_idx))", "score * f32(kv_idx)", "f32(kv_idx) * f32(q_idx + kv_idx)"}) {
    EXPECT_FALSE(slope_over_keys(read(text), ranges())) << text;
  }
}

// From 2^24 on f32 rounds integers: their differences from key to key are not all alike.
TEST(SlopeOverKeys, NeedsIntegersThatF32Holds) {
  EXPECT_TRUE(slope_over_keys(read("f32(kv_idx)"), ranges(1 << 24)));
  EXPECT_FALSE(slope_over_keys(read("f32(kv_idx)"), ranges((1 << 24) + 2)));
  EXPECT_FALSE(slope_over_keys(read("f32(kv_idx * 100000)"), ranges()));
  EXPECT_FALSE(slope_over_keys(read("f32(kv_idx * n)"), ranges()));
}

void expect_term(const std::string& text, std::int64_t from, std::int64_t to) {
  SCOPED_TRACE(text);
  const Expr e = read(text);
  const std::optional<TermOfDistance> found = term_of_distance(e, ranges());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->from, from);
  EXPECT_EQ(found->to, to);
  const Values values;
  const Interpreter term(e, values.bindings, Precision::f32);
  for (std::int32_t d = 1 - kQueries; d < kKeys; ++d) {
    const std::int32_t q = d < 0 ? -d : 0, kv = d < 0 ? 0 : d;
    const double value = term.real(element(1, q, kv));
    EXPECT_EQ(term.real(element(1, 0, d)), value) << "kernels ask for it at query 0: distance " << d;
    if (q + 1 < kQueries && kv + 1 < kKeys) {
      EXPECT_EQ(term.real(element(1, q + 1, kv + 1)), value) << "distance " << d;
    }
    const std::int64_t end = d >= from ? from : to;
    if (d >= from || d <= to) {
      EXPECT_EQ(term.real(element(1, 0, static_cast<std::int32_t>(end))), value) << "distance " << d;
    }
  }
}

TEST(BoundOfDistance, SaysWhatTheComparisonDoes) {
  const Values values;
  for (const char* text : {"q_idx >= kv_idx", "kv_idx < q_idx", "q_idx - kv_idx <= 7", "7 < kv_idx - q_idx",
                           "2 * q_idx - kv_idx > q_idx + 3", "q_idx - kv_idx < clip(n, 0, 50)",
                           "kv_idx >= q_idx - 8 * h", "not (q_idx >= kv_idx + 5)"}) {
    SCOPED_TRACE(text);
    const Expr e = read(text);
    const std::optional<BoundOfDistance> bound = bound_of_distance(e, ranges());
    ASSERT_TRUE(bound);
    const Interpreter says(e, values.bindings, Precision::f32), value(bound->value, values.bindings, Precision::f32);
    const auto bounds = [&](const Element& at) { return std::get<std::int32_t>(value(at)); };
    for (std::int32_t d = 1 - kQueries; d < kKeys; ++d) {
      const Element at = element(2, d < 0 ? -d : 0, d < 0 ? 0 : d);
      EXPECT_EQ(says.boolean(at), bound->is_most ? d <= bounds(at) : d >= bounds(at)) << d;
    }
  }
}

TEST(BoundOfDistance, IsNotThereWhereThereIsMoreToSay) {
  for (const char* text : {"q_idx == kv_idx", "q_idx != kv_idx", "2 * q_idx >= 2 * kv_idx", "q_idx >= kv_idx // 2",
                           "f32(q_idx) >= f32(kv_idx)", "q_idx >= 5", "q_idx >= kv_idx + n * q_idx"}) {
    EXPECT_FALSE(bound_of_distance(read(text), ranges())) << text;
  }
  EXPECT_FALSE(bound_of_distance(read("q_idx >= kv_idx - n"), ranges())) << "n may be anything";
}

TEST(TermOfDistance, IsTheSameAlongDiagonalsAndFarFromThem) {
  expect_term("table[clip(kv_idx - q_idx, -16, 16) + 16, h]", 16, -16);
  expect_term("table[min(max(q_idx - kv_idx, 0), 20), h] * a", 0, -20);
  expect_term("-slopes[h] * f32(abs(q_idx - kv_idx))", kKeys - 1, 1 - kQueries);
  expect_term("1.0 if q_idx >= kv_idx else slopes[h]", 1, 0);
  expect_term("1.0 if 2 * q_idx - kv_idx > q_idx - 5 else 0.0", 5, 4);
  expect_term(print(mods::t5_bias(Capture("table", DType::f32, 2), 32, 128, true)).substr(8), 91, -91);
}

/// Up to `last` it is the same a period further on, and not at last + 1.
void expect_repeats(const std::string& text, std::int64_t last) {
  SCOPED_TRACE(text);
  const Expr e = read(text);
  const std::optional<TermOfDistance> found = term_of_distance(e, ranges());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->repeats_to, last);
  const Values values;
  const Interpreter term(e, values.bindings, Precision::f32);
  for (std::int32_t d = 1 - kQueries; d + kDistancePeriod <= std::min<std::int64_t>(found->repeats_to, kKeys - 1);
       ++d) {
    EXPECT_EQ(term.real(element(1, 0, d)), term.real(element(1, 0, d + kDistancePeriod))) << "distance " << d;
  }
}

TEST(TermOfDistance, RepeatsWherePeriodsDivideThoseOfTiles) {
  expect_repeats("1.0 if q_idx >= kv_idx and (q_idx - kv_idx) % 4 == 0 else 0.0", 0);
  expect_repeats("f32((q_idx - kv_idx) % 16 + (3 * kv_idx - 3 * q_idx) % 8)", kKeys - 1);
  expect_repeats("f32((3 * kv_idx - 3 * q_idx) % 24)", kKeys - 1);
  expect_repeats("f32((q_idx - kv_idx) % 3)", 1 - kQueries);
  expect_repeats("f32((kv_idx - q_idx) % 3)", 1 - kQueries);
  expect_repeats("f32((q_idx - kv_idx) % 32)", 1 - kQueries);
  expect_repeats("f32((q_idx - kv_idx) // 4)", 4 - kQueries);
  expect_repeats("f32(abs(kv_idx - q_idx) % 8)", 1 - kQueries);  // abs is not linear
  expect_repeats("1.0 if kv_idx - q_idx > -20 else slopes[h]", -20);
}

TEST(TermOfDistance, IsNotThereWhereMoreCounts) {
  for (const char* text : {"f32(kv_idx)", "f32(q_idx - 2 * kv_idx)", "f32(q_idx)", "f32(kv_idx - q_idx + q_len)",
                           "f32(kv_token - q_token)", "table[kv_idx % 33, h]", "random_uniform(1, b, h, q_idx, kv_idx)",
                           "score + f32(kv_idx - q_idx)"}) {
    EXPECT_FALSE(term_of_distance(read(text), ranges())) << text;
  }
}

}  // namespace
}  // namespace heddle::expr
