// The text form: print and parse are inverse, precedence is Python's, every refusal points at its place.
#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "expect_error.h"
#include "expr/grammar.h"
#include "expr/node.h"
#include "expr/random_expression.h"
#include "expr/text_symbols.h"
#include "heddle/error.h"
#include "sample.h"

namespace heddle::expr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

bool reads_back(const Expr& e) { return same(parse(print(e), symbols_of(e)), e); }

TEST(Text, EveryRandomExpressionReadsBackAsTheSameNode) {
  test::RandomExpressions random(20240601);
  std::array<int, kOpCount> expressions_with{};
  const int count = heddle::test::random_cases(20000);
  for (int i = 0; i < count; ++i) {
    const Expr e = random.draw(60);
    std::array<bool, kOpCount> has{};
    for (const Node* node : post_order(e)) has[static_cast<std::size_t>(node->op)] = true;
    for (std::size_t op = 0; op < has.size(); ++op) expressions_with[op] += has[op] ? 1 : 0;
    ASSERT_TRUE(reads_back(e)) << print(test::shrink(e, [](const Expr& x) { return !reads_back(x); }));
  }
  for (int op = 0; op < kOpCount; ++op) {
    EXPECT_GE(expressions_with[static_cast<std::size_t>(op)], count / 40) << info(static_cast<Op>(op)).name;
  }
}

/// Expressions of everything that was drawn, each used again and again: their texts have names.
TEST(Text, RandomExpressionsWithNamesReadBack) {
  test::RandomExpressions random(20261128);
  const int count = heddle::test::random_cases(1000);
  for (int i = 0; i < count; ++i) {
    Expr all = leaf::score() > 0.0;
    for (int part = 0; part < 12; ++part) {
      const Expr e = random.draw(60);
      const Expr truth = e.type() == ExprType::boolean ? e : e > 0;
      all = (all && truth) || (!all && where(truth, leaf::score(), 0.0) < 1.0);
    }
    ASSERT_NE(print(all).find("_1 = "), std::string::npos);
    ASSERT_TRUE(reads_back(all)) << i;
  }
}

TEST(Text, ConstantsReadBack) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double x : {0.0, -0.0, 1.0, -1.0, 2.0, 0.1, -3.5, 1e20, 1e-3, 1e300, 5e-324, 1.7976931348623157e308, inf,
                         -inf, static_cast<double>(0.1F), 16777217.0, std::nan("")}) {
    EXPECT_TRUE(reads_back(Expr(x))) << print(Expr(x));
    EXPECT_TRUE(reads_back(leaf::score() - Expr(x))) << print(leaf::score() - Expr(x));
    EXPECT_TRUE(reads_back(-(Expr(x) * leaf::score())));
    EXPECT_TRUE(reads_back(pow(Expr(x), Expr(x))));
  }
  for (const std::int32_t x : {0, 1, -1, 2147483647, -2147483647, std::numeric_limits<std::int32_t>::min()}) {
    EXPECT_TRUE(reads_back(Expr(x)));
    EXPECT_TRUE(reads_back(leaf::h() - Expr(x)));
  }
  EXPECT_EQ(print(Expr(2.0)), "2.0");
  EXPECT_EQ(print(Expr(-0.0)), "-0.0");
  EXPECT_EQ(print(Expr(1e20)), "1e+20");
  EXPECT_EQ(print(Expr(-inf)), "-inf");
  EXPECT_EQ(print(Expr(std::numeric_limits<std::int32_t>::min())), "-2147483648");
  EXPECT_EQ(print(Expr(true)), "True");
}

// Each text, and its printed form: brackets only where they are needed.
TEST(Text, PrecedenceIsPythons) {
  const std::vector<std::pair<const char*, const char*>> table = {
      {"1 + 2 * h", "1 + 2 * h"},
      {"(1 + 2) * h", "(1 + 2) * h"},
      {"h - b - 1", "h - b - 1"},
      {"h - (b - 1)", "h - (b - 1)"},
      {"h * b // 3 % 2", "h * b // 3 % 2"},
      {"h * (b // 3)", "h * (b // 3)"},
      {"-h * b", "-h * b"},
      {"-(h * b)", "-(h * b)"},
      {"- -h", "--h"},
      {"+h", "h"},
      {"h - -3", "h - -3"},
      {"-h ** 2", "-(h * h)"},
      {"(-h) ** 2", "-h * -h"},
      {"h ** 5", "h * h * (h * h) * h"},
      {"h ** 0", "1"},
      {"h ** 32", "pow(f32(h), 32.0)"},
      {"h ** -1", "pow(f32(h), -1.0)"},
      {"h ** 2.0", "pow(f32(h), 2.0)"},
      {"score ** 3", "score * score * score"},
      {"score ** 0", "1.0"},
      {"score ** 4", "pow(score, 4.0)"},
      {"score ** 2.0", "pow(score, 2.0)"},
      {"2 ** 3 ** 2", "512"},
      {"2 ** 31", "-2147483648"},
      {"2 ** score", "pow(2.0, score)"},
      {"h & b | q_idx ^ 3", "h & b | q_idx ^ 3"},
      {"(h | b) & 3", "(h | b) & 3"},
      {"h & (b & 3)", "h & (b & 3)"},
      {"h ^ b | h", "h ^ b | h"},
      {"h << 1 + b", "h << 1 + b"},
      {"(h << 1) + b", "(h << 1) + b"},
      {"h << 1 & b >> 2", "h << 1 & b >> 2"},
      {"h >> b >> 1", "h >> b >> 1"},
      {"h >> (b >> 1)", "h >> (b >> 1)"},
      {"~h + 1", "~h + 1"},
      {"~(h + 1)", "~(h + 1)"},
      {"~-h", "~-h"},
      {"~~h", "~~h"},
      {"~-3", "~-3"},
      {"h & 1 == b", "h & 1 == b"},
      {"(h & 1) == b >> 1 < 4", "h & 1 == b >> 1 < 4"},
      {"relu(h)", "max(h, 0)"},
      {"silu(score)", "score * sigmoid(score)"},
      {"softplus(score)", "max(score, 0.0) + log1p(exp(-abs(score)))"},
      {"q_idx >= kv_idx & h == 0", "q_idx >= kv_idx & h == 0"},
      {"isnan(score) & (h == 1)", "isnan(score) and h == 1"},
      {"round(h)", "round(f32(h))"},
      {"sign(h)", "sign(h)"},
      {"2 ** -h", "pow(2.0, f32(-h))"},
      {"score * 2", "score * 2.0"},
      {"h / 2", "f32(h) / 2.0"},
      {"not h == 1", "not h == 1"},
      {"not (h == 1)", "not h == 1"},
      {"not not causal", "not not causal"},
      {"not causal and open[h]", "not causal and open[h]"},
      {"not (causal and open[h])", "not (causal and open[h])"},
      {"causal or open[h] and h == 1", "causal or open[h] and h == 1"},
      {"(causal or open[h]) and h == 1", "(causal or open[h]) and h == 1"},
      {"causal and (open[h] and h == 1)", "causal and (open[h] and h == 1)"},
      {"causal | open[h] & open[b]", "causal or open[h] and open[b]"},
      {"causal & (h < b)", "causal and h < b"},
      {"causal ^ open[h] | open[b]", "causal ^ open[h] or open[b]"},
      {"causal ^ (h < b)", "causal ^ (h < b)"},
      {"~causal & open[h]", "not causal and open[h]"},
      {"causal ^ (not open[h])", "causal ^ (not open[h])"},
      {"causal == open[h]", "not causal ^ open[h]"},
      {"causal != open[h]", "causal ^ open[h]"},
      {"0 <= h < b", "0 <= h < b"},
      {"0 <= h and h < b", "0 <= h < b"},
      {"0 <= h < b == q_idx != 3", "0 <= h < b == q_idx != 3"},
      {"not 0 <= h < b", "not 0 <= h < b"},
      {"0 <= h and b < 3", "0 <= h and b < 3"},
      {"causal and 0 <= h < b", "causal and 0 <= h < b"},
      {"causal and 0 <= h and h < b", "causal and 0 <= h and h < b"},
      {"h if causal else b", "where(causal, h, b)"},
      {"1 if causal else 2 if open[h] else 3", "where(causal, 1, where(open[h], 2, 3))"},
      {"1 + 2 if causal or open[h] else 3", "where(causal or open[h], 1 + 2, 3)"},
      {"min(h, b, 3)", "min(h, b, 3)"},
      {"min(min(h, b), 3)", "min(h, b, 3)"},
      {"min(h, min(b, 3))", "min(h, min(b, 3))"},
      {"max(min(h, b), 3, q_idx)", "max(min(h, b), 3, q_idx)"},
      {"clip(h, 0, 3)", "min(max(h, 0), 3)"},
      {"score + slopes[h] * (kv_idx - q_idx)", "score + slopes[h] * f32(kv_idx - q_idx)"},
      {"at(bias, h, b, 0)", "at(bias, h, b, 0.0)"},
      {"gain * score", "gain * score"},
      {"at(gain, 1)", "at(gain, 1.0)"},
      {"1. + .5 + 1e-3 + 1E3", "1.0 + 0.5 + 0.001 + 1000.0"},
      {"\th\n+\r\n1 ", "h + 1"},
      {"true != false", "True ^ False"},
      {"-2147483648", "-2147483648"},
      {"f32(3)", "3.0"},
      {"i32(causal)", "i32(causal)"},
      {"doc[q_idx] == doc[kv_idx]", "doc[q_idx] == doc[kv_idx]"},
  };
  for (const auto& [text, printed] : table) {
    SCOPED_TRACE(text);
    const std::string first = outcome_of(text);
    EXPECT_EQ(first, std::string("accepted: ") + printed);
    EXPECT_EQ(outcome_of(printed), first);
  }
}

TEST(Text, NamesStandForWhatFollowsThem) {
  EXPECT_EQ(print(parse("x = score * 2.0; exp(x) + x")), "exp(score * 2.0) + score * 2.0");
  EXPECT_EQ(print(parse("x = h;y = x + 1; x = y * y; x - y")), "(h + 1) * (h + 1) - (h + 1)");
  Symbols symbols;
  symbols.params["n"] = ExprType::i32;
  EXPECT_EQ(print(parse("x = n + 1; x * x", symbols)), "(n + 1) * (n + 1)");
  const auto refused = [&](const char* text, const char* sentence) {
    expect_error([&] { parse(text, symbols); }, ErrorCode::invalid_argument, HasSubstr(sentence));
  };
  refused("n = 3; n", "'=' has no meaning here");
  refused("h = 3; h", "'=' has no meaning here");
  refused("exp = 3; h", "'=' has no meaning here");
  refused("x = 3", "the text ends where ';' was expected");
  refused("x = 3;", "the text ends where a value was expected");
  refused("h + (x = 3)", "unknown name 'x'");
  refused("y = x; x = 3; y", "unknown name 'x'");
  refused("h; h", "expected an operator or the end but found ';'");
}

/// `e` of as many operations, each of which uses the one before twice.
Expr shared(int operations) {
  Expr e = leaf::score();
  for (int i = 0; i < operations; ++i) e = where(e > 0.0, e * 1.25, e - 0.5);
  return e;
}

TEST(Text, ASharedExpressionPrintsWithNamesAndReadsBack) {
  EXPECT_EQ(print(shared(1)), "where(score > 0.0, score * 1.25, score - 0.5)");
  EXPECT_EQ(print(shared(3)).find('='), std::string::npos);
  for (const int operations : {9, 100, 490}) {
    const Expr e = shared(operations);
    const std::string text = print(e);
    EXPECT_LT(text.size(), 60U * static_cast<unsigned>(operations)) << operations;
    EXPECT_EQ(parse(text, symbols_of(e)).node(), e.node()) << text.substr(0, 200);
  }
  const Expr taken = param("_1", ExprType::f32) + param("_2", ExprType::f32) * shared(100);
  EXPECT_THAT(print(taken), StartsWith("_3 = "));
  EXPECT_EQ(parse(print(taken), symbols_of(taken)).node(), taken.node());
}

TEST(Text, ADeepExpressionPrintsWithNamesAndReadsBack) {
  Expr deep = leaf::score(), chain = leaf::kv_idx() < 3;
  for (int i = 0; i < 450; ++i) {
    deep = exp(-deep);
    if (heddle::test::is_reduced() && i % 10 != 9) continue;
    EXPECT_EQ(parse(print(deep)).node(), deep.node()) << i;
  }
  for (int i = 0; i < 900; ++i) chain = leaf::q_idx() < i && chain;
  EXPECT_EQ(parse(print(chain)).node(), chain.node());
}

TEST(Text, TheTextOfASharedExpressionIsBounded) {
  Expr e = leaf::score();
  for (int i = 0; i < 500; ++i) e = e * e;
  EXPECT_EQ(parse(print(e)).node(), e.node());
  Expr wide = leaf::score();
  for (int i = 0; i < 990; ++i) {
    const Expr term = exp(leaf::score() - (i + 0.987654321)) * (i + 0.123456789) + (i + 0.543212345);
    wide = max(wide, term * (i + 0.918273645));
  }
  EXPECT_THAT([&] { print(wide); }, ::testing::ThrowsMessage<Error>(HasSubstr("is longer than 65536 bytes: `max(")));
  EXPECT_EQ(quote(e).size(), 62U);
  try {
    const Expr bad = e & e;
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 300U);
  }
}

TEST(Text, SymbolsNameEachThingOnce) {
  const Expr e = parse("score * alpha + slopes[h] + where(causal, 1, doc[window])", text_symbols());
  const Symbols found = symbols_of(e);
  EXPECT_EQ(found.captures.size(), 2U);
  EXPECT_EQ(found.captures.at("doc").dtype, DType::i64);
  EXPECT_EQ(found.params.size(), 3U);
  EXPECT_EQ(found.params.at("causal"), ExprType::boolean);

  const auto conflict = [](const Expr& x) {
    try {
      symbols_of(x);
      return std::string("none");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(conflict(param("x", ExprType::f32) + param("x", ExprType::i32)),
            "param 'x' is read as f32 and as i32 in one expression");
  EXPECT_EQ(conflict(param("x", ExprType::f32) + Capture("x", DType::f32, 0)()),
            "'x' is both a param and a capture in one expression");
  EXPECT_EQ(conflict(Capture("x", DType::f16, 1)(0) + Capture("x", DType::f32, 1)(0)),
            "capture 'x' is read as f16 of rank 1 and as f32 of rank 1 in one expression");
}

TEST(Text, BoundNamesBecomeSymbols) {
  const std::vector<float> data(6);
  Bindings bindings;
  bindings.captures["grid"] = ConstTensorView(data.data(), DType::f32, Dims{2, 3});
  bindings.params = {{"x", 1.5}, {"n", 3}, {"on", true}};
  const Symbols from_bindings(bindings);
  EXPECT_EQ(print(parse("grid[n, 0] * x if on else 0", from_bindings)), "where(on, grid[n, 0] * x, 0.0)");
}

}  // namespace
}  // namespace heddle::expr
