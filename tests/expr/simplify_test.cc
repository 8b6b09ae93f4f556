// Simplification never changes a value: random expressions, each rule by itself, and the results that users count on.
#include "expr/simplify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>

#include "expr/random_expression.h"
#include "expr/rules.h"
#include "expr/verify.h"
#include "sample.h"

namespace heddle::expr {
namespace {

using test::RandomExpressions;

/// Bit for bit, but any NaN for any NaN.
bool equal(const Value& x, const Value& y) {
  const double* a = std::get_if<double>(&x);
  const double* b = std::get_if<double>(&y);
  if (a == nullptr || b == nullptr) return x == y;
  return std::bit_cast<std::uint64_t>(*a) == std::bit_cast<std::uint64_t>(*b) || (std::isnan(*a) && std::isnan(*b));
}

std::string to_text(const Value& value) {
  return std::visit([](auto x) { return fmt::format("{}", x); }, value);
}

/// Now and then a value at the edge of its type.
Element edge_element(RandomExpressions& random) {
  Element element = random.element();
  constexpr std::array<double, 6> scores = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-42};
  if (random.below(3) == 0) element.score = scores[static_cast<std::size_t>(random.below(6))];
  constexpr std::array<std::int32_t, 5> indices = {std::numeric_limits<std::int32_t>::min(),
                                                   std::numeric_limits<std::int32_t>::max(), 0, -1, 1};
  for (int i = 1; i < kLeafCount; ++i) {
    if (random.below(6) == 0) {
      element.index[static_cast<std::size_t>(i)] = indices[static_cast<std::size_t>(random.below(5))];
    }
  }
  return element;
}

std::vector<Element> edge_elements(RandomExpressions& random, int count) {
  std::vector<Element> elements;
  for (int i = 0; i < count; ++i) elements.push_back(edge_element(random));
  return elements;
}

/// A sentence that says where the two differ; empty if they do not.
std::string difference(const Expr& before, const Expr& after, const std::vector<Element>& elements,
                       const Bindings& bindings, Precision precision) {
  if (before.type() != after.type()) return "the type changed";
  const Interpreter given(before, bindings, precision);
  const Interpreter simplified(after, bindings, precision);
  for (const Element& element : elements) {
    const Value expected = given(element);
    const Value found = simplified(element);
    if (equal(expected, found)) continue;
    return fmt::format("{} became {} at score {}, indices {}", to_text(expected), to_text(found), element.score,
                       fmt::join(element.index, " "));
  }
  return {};
}

std::size_t size(const Expr& e) { return post_order(e).size(); }

/// The fault of simplifying e; empty when there is none.
std::string fault(const Expr& e, const std::vector<Element>& elements, const Bindings& bindings, Precision precision) {
  const Expr simple = simplify(e, precision);
  if (size(simple) > size(e)) return "grew to " + print(simple);
  if (!same(simplify(simple, precision), simple)) return "is not finished: " + print(simple);
  const std::string changed = difference(e, simple, elements, bindings, precision);
  return changed.empty() ? "" : changed + ", by " + print(simple);
}

TEST(Simplify, ChangesNoValueOfRandomExpressions) {
  RandomExpressions random(2);
  std::array<int, kOpCount> drawn{};
  std::size_t before = 0;
  std::size_t after = 0;
  const int count = heddle::test::random_cases(20000);
  for (int i = 0; i < count; ++i) {
    const Expr e = random.draw();
    const Precision precision = i % 2 == 0 ? Precision::f32 : Precision::f64;
    const std::vector<Element> elements = edge_elements(random, 12);
    for (const Node* node : post_order(e)) ++drawn[static_cast<std::size_t>(node->op)];
    const auto fails = [&](const Expr& x) { return !fault(x, elements, random.bindings(), precision).empty(); };
    if (fails(e)) {
      const Expr small = test::shrink(e, fails);
      FAIL() << print(small) << "\n" << fault(small, elements, random.bindings(), precision);
    }
    before += size(e);
    after += size(simplify(e, precision));
  }
  for (int i = 0; i < kOpCount; ++i) {
    EXPECT_GE(drawn[static_cast<std::size_t>(i)], count / 40) << info(static_cast<Op>(i)).name;
  }
  EXPECT_LT(after, before * 9 / 10);  // random expressions hold much that folds
}

/// Operands that the rules look for: names, constants at the edges, and one operation over them.
std::vector<Expr> operands_of(ExprType type) {
  const Expr score = leaf::score();
  const Expr q = leaf::q_idx();
  const Expr kv = leaf::kv_idx();
  const Expr x = Expr(type == ExprType::f32 ? score : q);
  if (type == ExprType::boolean) {
    const Expr less = q < kv;
    const Expr real = score < 1.0;
    return {less,         q >= kv,     kv > q,      real,       !real,      score == 1.0,
            score != 1.0, less & real, less | real, Expr(true), Expr(false)};
  }
  const Expr y = type == ExprType::f32 ? to_f32(kv) : kv;
  std::vector<Expr> all = {x,         y,
                           -x,        -y,
                           abs(x),    x + y,
                           x - y,     x * 3,
                           x * y,     min(x, y),
                           min(x, 2), max(x, y),
                           max(x, 2), floor_div(x, y),
                           x % y,     where(q < kv, x, y),
                           sign(x),   where(score < 1.0, x, y)};
  if (type == ExprType::f32) {
    for (const double constant : {0.0, -0.0, 1.0, -1.0, 2.0, 3.0, 0.125, 1e-44, 1e38}) all.emplace_back(constant);
    all.insert(all.end(),
               {Expr(INFINITY), Expr(-INFINITY), Expr(NAN), floor(x), trunc(x), to_f32(q < kv), to_f32(q), exp(x)});
  } else {
    for (const int constant : {0, 1, -1, 2, 7, 31, 32, 65536}) all.emplace_back(constant);
    all.push_back(~x);
    all.insert(all.end(),
               {Expr(std::numeric_limits<std::int32_t>::min()), Expr(std::numeric_limits<std::int32_t>::max()),
                to_i32(score), to_i32(q < kv), to_i32(to_f32(q))});
  }
  return all;
}

class EachRule : public ::testing::Test {
 protected:
  void apply_to(const Expr& e) {
    for (const Precision precision : {Precision::f32, Precision::f64}) {
      for (const Rule& rule : rules_of(e.node()->op)) {
        const Expr result = rule.apply(*e.node(), precision);
        if (result.empty()) continue;
        ++applied_[rule.says];
        verify(result);
        EXPECT_FALSE(same(result, e)) << rule.says << ": " << print(e);
        const std::string changed = difference(e, result, elements_, {}, precision);
        ASSERT_EQ(changed, "") << rule.says << ": " << print(e) << " became " << print(result);
      }
    }
  }

  RandomExpressions random_{3};
  std::vector<Element> elements_ = edge_elements(random_, heddle::test::is_reduced() ? 2 : 16);
  std::map<std::string_view, int> applied_;
};

TEST_F(EachRule, HoldsByItself) {
  const std::vector<Expr> conditions = operands_of(ExprType::boolean);
  for (const ExprType type : {ExprType::f32, ExprType::i32, ExprType::boolean}) {
    const std::vector<Expr> operands = operands_of(type);
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      const bool logic = info(op).kind == Kind::logic || op == Op::to_f32 || op == Op::to_i32;
      if (info(op).kind == Kind::bits && type != ExprType::i32) continue;
      if (info(op).kind == Kind::read || info(op).kind == Kind::random || (type == ExprType::boolean && !logic))
        continue;
      if (type != ExprType::boolean && info(op).kind == Kind::logic) continue;
      for (const Expr& x : operands) {
        if (info(op).arity == 1) apply_to(build(op, std::array{x}));
        if (info(op).arity != 2) continue;
        for (const Expr& y : operands) apply_to(build(op, std::array{x, y}));
      }
    }
    for (const Expr& condition : conditions) {
      for (const Expr& x : operands) {
        for (const Expr& y : operands) apply_to(where(condition, x, y));
      }
    }
  }
  for (int op = 0; op < kOpCount; ++op) {
    for (const Rule& rule : rules_of(static_cast<Op>(op))) EXPECT_GE(applied_[rule.says], 1) << rule.says;
  }
}

Expr read(std::string_view text) {
  Symbols symbols;
  symbols.captures["slopes"] = {DType::f32, 1};
  symbols.captures["doc"] = {DType::i32, 1};
  return parse(text, symbols);
}

void expect_simple(std::string_view text, std::string_view expected, Precision precision = Precision::f32) {
  EXPECT_EQ(print(simplify(read(text), precision)), expected) << text;
}

TEST(Simplify, FoldsConstants) {
  expect_simple("score * (2.0 * 3.0)", "score * 6.0");
  expect_simple("exp2(3.0) + 1", "9.0");
  expect_simple("where(1 < 2, score, 0.0)", "score");
  expect_simple("2147483647 + 1", "-2147483648");
  expect_simple("7 // 0", "0");
  expect_simple("f32(0.1) * 3.0 == 0.3", "False", Precision::f64);
  expect_simple("0.1 + 0.2", "0.30000000000000004", Precision::f64);
}

TEST(Simplify, CollectsIntegerTerms) {
  expect_simple("2*q_idx - kv_idx - q_idx", "q_idx - kv_idx");
  expect_simple("q_idx + 5 - q_idx", "5");
  expect_simple("(q_idx + 1) * 2 - 2*q_idx", "2");
  expect_simple("(q_idx - kv_idx) * 8", "(q_idx - kv_idx) * 8");
  expect_simple("kv_idx + 3 + q_idx - 1 + 2", "q_idx + kv_idx + 4");
  expect_simple("-(kv_idx - q_idx)", "q_idx - kv_idx");
  expect_simple("q_idx - kv_idx == 0", "q_idx == kv_idx");
  expect_simple("3*kv_idx + 1 != 3*q_idx + 4", "kv_idx != q_idx + 1");
  expect_simple("q_idx + 7 == q_idx + 3 + 4", "True");
  expect_simple("65536 * q_idx * 65536", "0");
  expect_simple("2*q_idx == 2*kv_idx", "q_idx * 2 == kv_idx * 2");
}

TEST(Simplify, LeavesWrappingComparisonsAlone) {
  // q_idx + 1 wraps at INT_MAX; a term must not change sides.
  expect_simple("q_idx + 1 > kv_idx + 1", "q_idx + 1 > kv_idx + 1");
  expect_simple("q_idx + 1 > q_idx", "q_idx < q_idx + 1");
}

TEST(Simplify, LeavesWhatNanAndZerosDependOn) {
  expect_simple("score - score", "score - score");
  expect_simple("score * 0.0", "score * 0.0");
  expect_simple("score == score", "score == score");
  expect_simple("score + 0.0", "score + 0.0");
  expect_simple("abs(score) + 0.0", "abs(score)");
  expect_simple("score - 0.0", "score");
  expect_simple("not score < 1.0", "not score < 1.0");
  expect_simple("not score == 1.0", "score != 1.0");
  expect_simple("score < score", "False");
  expect_simple("pow(score, 2.0)", "score * score");
  expect_simple("trunc(round(score))", "round(score)");
  expect_simple("isnan(f32(q_idx)) or isinf(score)", "isinf(score)");
  expect_simple("pow(score, 2.0)", "pow(score, 2.0)", Precision::f64);
  expect_simple("score / 3.0", "score / 3.0");
  expect_simple("score / 8.0", "score * 0.125");
}

TEST(Simplify, BitsByLiteralsAreArithmetic) {
  expect_simple("(q_idx >> 4) & 7", "q_idx // 16 % 8");
  expect_simple("q_idx << 3", "q_idx * 8");
  expect_simple("q_idx << 31", "q_idx * -2147483648");
  expect_simple("q_idx << 32", "0");
  expect_simple("q_idx << -1", "0");
  expect_simple("q_idx >> 32", "q_idx >> 31");
  expect_simple("q_idx >> -5", "q_idx >> 31");
  expect_simple("q_idx >> 0", "q_idx");
  expect_simple("q_idx & 2147483647", "q_idx & 2147483647");
  expect_simple("6 & q_idx", "q_idx & 6");
  expect_simple("~(q_idx - 1)", "-q_idx");
  expect_simple("~~q_idx", "q_idx");
  expect_simple("(q_idx ^ kv_idx) ^ (kv_idx ^ q_idx)", "0");
  expect_simple("6 ^ 3 | 8", "13");
  expect_simple("-8 >> 1", "-4");
}

TEST(Simplify, OrdersAndSharesOperands) {
  expect_simple("(kv_idx * q_idx) - (q_idx * kv_idx)", "0");
  expect_simple("2.0 * score", "score * 2.0");
  expect_simple("kv_idx <= q_idx", "q_idx >= kv_idx");
  expect_simple("(3 < q_idx) == (q_idx > 3)", "True");
}

TEST(Simplify, Booleans) {
  expect_simple("not (q_idx < kv_idx)", "q_idx >= kv_idx");
  expect_simple("not not (q_idx < kv_idx)", "q_idx < kv_idx");
  expect_simple("q_idx < kv_idx and kv_idx > q_idx", "q_idx < kv_idx");
  expect_simple("q_idx < kv_idx and q_idx >= kv_idx", "False");
  expect_simple("q_idx < kv_idx or not (q_idx < kv_idx)", "True");
  expect_simple("q_idx < kv_idx and (q_idx < kv_idx or h == 1)", "q_idx < kv_idx");
  expect_simple("(q_idx < kv_idx) & True | False", "q_idx < kv_idx");
  expect_simple("where(q_idx < kv_idx, False, True)", "q_idx >= kv_idx");
  expect_simple("where(not score < 1.0, score, 1.0)", "where(score < 1.0, 1.0, score)");
  expect_simple("where(not h == 1, score, 1.0)", "where(h != 1, score, 1.0)");
  expect_simple("where(h == 1, where(h == 1, score, 2.0), 3.0)", "where(h == 1, score, 3.0)");
  expect_simple("doc[q_idx] == doc[kv_idx] and True", "doc[q_idx] == doc[kv_idx]");
}

TEST(Simplify, KeepsSharedPartsShared) {
  // Written out alone, each half would be shorter; together they share.
  const Expr product = leaf::score() * 3.0;
  const Expr e = where(leaf::h() < 2, product / 8.0, product);
  EXPECT_LE(size(simplify(e, Precision::f32)), size(e));
}

TEST(Simplify, DeepExpressionsEndInTime) {
  Expr sum = leaf::q_idx();
  for (int i = 0; i < 900; ++i) sum = i % 2 == 0 ? sum + leaf::kv_idx() : sum - 1;
  EXPECT_EQ(print(simplify(sum, Precision::f32)), "q_idx + kv_idx * 450 - 450");
  Expr opaque = leaf::q_idx();
  for (int i = 0; i < 450; ++i) opaque = abs(opaque) + leaf::kv_idx() * i;
  EXPECT_LE(size(simplify(opaque, Precision::f32)), size(opaque));
}

struct LinearCase {
  std::string_view text;
  double scale;
  std::string_view offset;
};

TEST(LinearInScore, FindsScaleAndOffset) {
  const LinearCase cases[] = {
      {"score", 1, ""},
      {"score * 0.5", 0.5, ""},
      {"-score / 4.0", -0.25, ""},
      {"score + slopes[h] * (kv_idx - q_idx)", 1, "slopes[h] * f32(kv_idx - q_idx)"},
      {"(score + slopes[h]) * 2.0 - 1.0", 2, "slopes[h] * 2.0 + -1.0"},
      {"slopes[h] - score", -1, "slopes[h]"},
      {"2.0 * (score - slopes[h])", 2, "-slopes[h] * 2.0"},
      {"where(h == 0, score, score + 1.0)", 1, "where(h == 0, 0.0, 1.0)"},
      {"score + score", 2, ""},
  };
  for (const LinearCase& c : cases) {
    const auto found = linear_in_score(read(c.text));
    ASSERT_TRUE(found) << c.text;
    EXPECT_EQ(found->scale, c.scale) << c.text;
    EXPECT_EQ(found->offset.empty() ? "" : print(found->offset), c.offset) << c.text;
  }
}

TEST(LinearInScore, RefusesWhatIsNot) {
  for (const std::string_view text :
       {"tanh(score)", "score * score", "score * slopes[h]", "1.0 / score", "score - score", "score * 0.0",
        "score * inf", "where(h == 0, score, -inf)", "where(score > 0.0, score, score)", "slopes[h]", "2.0",
        "abs(score) + score", "where(score > 0.0, 1.0, 2.0)", "slopes[i32(score)] + score"}) {
    EXPECT_FALSE(linear_in_score(read(text))) << text;
  }
}

}  // namespace
}  // namespace heddle::expr
