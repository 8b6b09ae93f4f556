// Score mods taken apart by what they read: that the parts make the whole, and read no more than they may.
#include "expr/separate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "expr/simplify.h"

namespace heddle::expr {
namespace {

constexpr std::int32_t kQueries = 60, kKeys = 90;

LeafRanges ranges() {
  LeafRanges leaves;
  for (const Leaf leaf : {Leaf::b, Leaf::h}) leaves[leaf] = {0, 3, false};
  for (const Leaf leaf : {Leaf::q_idx, Leaf::q_token}) leaves[leaf] = {0, kQueries - 1, false};
  for (const Leaf leaf : {Leaf::kv_idx, Leaf::kv_token}) leaves[leaf] = {0, kKeys - 1, false};
  leaves[Leaf::score] = Range::any(ExprType::f32);
  return leaves;
}

Symbols symbols() {
  Symbols names;
  names.captures["pad"] = names.captures["table"] = names.captures["bias"] = {DType::f32, 2};
  names.captures["gate"] = names.captures["heat"] = {DType::f32, 1};
  names.params["a"] = ExprType::f32;
  names.params["n"] = ExprType::i32;
  return names;
}
struct Values {
  Tensor pad = Tensor::empty(DType::f32, {4, kKeys}), table = Tensor::empty(DType::f32, {700, 4}),
         bias = Tensor::empty(DType::f32, {kQueries, kKeys}), gate = Tensor::empty(DType::f32, {kQueries}),
         heat = Tensor::empty(DType::f32, {kKeys});
  Bindings bindings;
  Values() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (Tensor* tensor : {&pad, &table, &bias, &gate, &heat}) {
      for (std::int64_t i = 0; i < tensor->count(); ++i) static_cast<float*>(tensor->data())[i] = normal(random);
    }
    bindings.captures = {{"pad", pad}, {"table", table}, {"bias", bias}, {"gate", gate}, {"heat", heat}};
    bindings.params = {{"a", 1.5}, {"n", 2}};
  }
};

Expr read(const std::string& text) { return simplify(parse(text, symbols()), Precision::f32); }

Element element(std::int32_t q, std::int32_t kv, double score = 0.75) {
  Element at;
  at.score = score;
  at[Leaf::b] = 1;
  at[Leaf::h] = 2;
  at[Leaf::q_idx] = at[Leaf::q_token] = q;
  at[Leaf::kv_idx] = at[Leaf::kv_token] = kv;
  return at;
}

template <class Visit>
void for_some_elements(Visit&& visit) {
  for (const std::int32_t q : {0, 1, 17, kQueries - 1}) {
    for (const std::int32_t kv : {0, 3, 44, kKeys - 1}) visit(q, kv);
  }
}

bool reads_query(const Expr& e) { return !e.empty() && e.node()->uses.intersects({Leaf::q_idx, Leaf::q_token}); }
bool reads_key(const Expr& e) { return !e.empty() && e.node()->uses.intersects({Leaf::kv_idx, Leaf::kv_token}); }

TEST(SeparateTerm, PartsSumToTheTerm) {
  const Values values;
  for (const char* text :
       {"pad[b, kv_idx]", "gate[q_idx] - pad[b, kv_idx] + 2.0", "a * (gate[q_idx] + pad[b, kv_idx]) / 4.0",
        "-(pad[b, kv_idx] - bias[q_idx, kv_idx])", "(gate[q_idx] + pad[b, kv_idx]) * a if h > 1 else pad[h, kv_idx]",
        "bias[q_idx, kv_idx] * 2.0 + (f32(kv_idx) - f32(q_idx)) / a", "gate[q_idx] * pad[b, kv_idx] + heat[kv_idx]",
        "where(kv_idx < 5, 0.0, gate[q_idx]) - heat[kv_idx]"}) {
    SCOPED_TRACE(text);
    const Expr term = read(text);
    const SeparatedTerm parts = separate_term(term);
    EXPECT_FALSE(reads_key(parts.of_query));
    EXPECT_FALSE(reads_query(parts.of_key));
    const Interpreter whole(term, values.bindings, Precision::f64);
    for_some_elements([&](std::int32_t q, std::int32_t kv) {
      double sum = 0;
      for (const Expr& part : {parts.of_query, parts.of_key, parts.of_both}) {
        if (!part.empty()) sum += Interpreter(part, values.bindings, Precision::f64).real(element(q, kv));
      }
      EXPECT_NEAR(sum, whole.real(element(q, kv)), 1e-12);
    });
  }
}

TEST(SeparateTerm, LeavesLittleToBoth) {
  const auto both = [](const char* text) { return !separate_term(read(text)).of_both.empty(); };
  EXPECT_FALSE(both("a * (gate[q_idx] + pad[b, kv_idx]) / 4.0"));
  EXPECT_FALSE(both("(gate[q_idx] + pad[b, kv_idx]) * a if h > 1 else pad[h, kv_idx]"));
  EXPECT_TRUE(both("gate[q_idx] * pad[b, kv_idx]"));
  EXPECT_TRUE(both("where(kv_idx < 5, 0.0, gate[q_idx])"));
  const SeparatedTerm parts = separate_term(read("bias[q_idx, kv_idx] + pad[b, kv_idx] - gate[q_idx]"));
  EXPECT_EQ(print(parts.of_both), "bias[q_idx, kv_idx]");
  EXPECT_EQ(print(parts.of_key), "pad[b, kv_idx]");
  EXPECT_EQ(print(parts.of_query), "-gate[q_idx]");
}

TEST(FactorOfKey, IsWhatTheScoreIsMultipliedBy) {
  const Values values;
  for (const char* text : {"score * heat[kv_idx]", "heat[kv_idx] * (score * 2.0 - gate[q_idx]) / a + pad[b, kv_idx]",
                           "3.0 - score / (1.0 + abs(heat[kv_idx]))", "score * a if kv_idx > 5 else score * 2.0 + 1.0",
                           "score * a + 0.5 * (a * score)", "-(score * a) * heat[kv_idx]"}) {
    SCOPED_TRACE(text);
    const Expr mod = read(text);
    const std::optional<ScoreOfKey> found = factor_of_key(mod);
    ASSERT_TRUE(found);
    EXPECT_FALSE(reads_query(found->factor));
    const Interpreter whole(mod, values.bindings, Precision::f64),
        factor(found->factor, values.bindings, Precision::f64);
    for_some_elements([&](std::int32_t q, std::int32_t kv) {
      for (const double score : {-2.0, 0.0, 0.75}) {
        double t = found->scale * factor.real(element(q, kv)) * score;
        if (!found->offset.empty()) {
          t += Interpreter(found->offset, values.bindings, Precision::f64).real(element(q, kv));
        }
        EXPECT_NEAR(t, whole.real(element(q, kv, score)), 1e-6);
      }
    });
  }
}

TEST(FactorOfKey, IsNotThereWhereTheModIsNoSuchProduct) {
  for (const char* text : {"score", "score * 2.0 + heat[kv_idx]", "score * gate[q_idx]", "score * score * a",
                           "tanh(score) * a", "score * heat[kv_idx] + score", "score * a + score * heat[kv_idx]",
                           "a / score", "score * a if kv_idx > 5 else 0.0", "score * a - a * score"}) {
    EXPECT_FALSE(factor_of_key(read(text))) << text;
  }
}

TEST(TermOfSum, IsTheTermAtTheSumOfThePlaces) {
  const Values values;
  for (const char* text : {"table[(q_idx // 7 - kv_idx // 7 + 12) * 13 + (q_idx % 7 - kv_idx % 7) + 6, h]",
                           "at(table, q_idx - 2 * kv_idx, h, a) * 2.0",
                           "where(kv_idx // 4 - q_idx // 4 > 0, 1.0, f32(q_idx // 4 - kv_idx // 4) * a)",
                           "table[kv_idx + q_idx + h, 1] - table[3 * (q_idx + kv_idx) + 5, 2]"}) {
    SCOPED_TRACE(text);
    const Expr term = read(text);
    const std::optional<TermOfSum> found = term_of_sum(term, ranges(), 1 << 15);
    ASSERT_TRUE(found);
    EXPECT_FALSE(reads_query(found->entry));
    EXPECT_FALSE(reads_key(found->of_query));
    EXPECT_FALSE(reads_query(found->of_key));
    const Interpreter whole(term, values.bindings, Precision::f32),
        entry(found->entry, values.bindings, Precision::f32),
        of_query(found->of_query, values.bindings, Precision::f32),
        of_key(found->of_key, values.bindings, Precision::f32);
    const auto index = [](const Interpreter& of, const Element& at) { return std::get<std::int32_t>(of(at)); };
    for_some_elements([&](std::int32_t q, std::int32_t kv) {
      const std::int32_t sum = index(of_query, element(q, kv)) + index(of_key, element(q, kv));
      EXPECT_EQ(entry.real(element(0, sum)), whole.real(element(q, kv)));
    });
    // Rows and keys past the ends are computed, too.
    for (const std::int32_t q : {-1000, -1, kQueries, 1 << 30}) {
      for (const std::int32_t kv : {-7, kKeys, 1 << 29}) {
        const std::int32_t of_row = index(of_query, element(q, 0)), of_column = index(of_key, element(0, kv));
        EXPECT_GE(of_row, 0);
        EXPECT_GE(of_column, 0);
        EXPECT_LT(of_row + of_column, found->entries);
      }
    }
  }
}

TEST(TermOfSum, IsNotThereWhereTheTermDependsOnMore) {
  for (const char* text :
       {"table[abs(q_idx - kv_idx) + q_idx, h]", "table[q_idx * kv_idx, h]", "bias[q_idx, kv_idx]",
        "table[q_idx + kv_idx, h] + table[q_idx + 2 * kv_idx, h]", "table[q_idx + kv_idx, h] * gate[q_idx]",
        "pad[b, kv_idx]", "table[q_idx + kv_token, h]", "at(table, q_idx + n * kv_idx, h, 0.0)"}) {
    EXPECT_FALSE(term_of_sum(read(text), ranges(), 1 << 15)) << text;
  }
  const Expr sum = read("at(table, q_idx + kv_idx, h, 0.0)");
  EXPECT_TRUE(term_of_sum(sum, ranges(), kQueries + kKeys - 1));
  EXPECT_FALSE(term_of_sum(sum, ranges(), kQueries + kKeys - 2)) << "more sums than that";
}

}  // namespace
}  // namespace heddle::expr
