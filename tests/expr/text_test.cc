// The text form: print and parse are inverse, precedence is Python's, every refusal points at its place.
#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "expect_error.h"
#include "expr/grammar.h"
#include "expr/node.h"
#include "expr/random_expression.h"
#include "heddle/error.h"
#include "sample.h"

namespace heddle::expr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const Symbols& symbols() {
  static const Symbols symbols = [] {
    Symbols s;
    s.captures["slopes"] = {DType::f32, 1};
    s.captures["bias"] = {DType::bf16, 2};
    s.captures["doc"] = {DType::i64, 1};
    s.captures["open"] = {DType::boolean, 1};
    s.captures["gain"] = {DType::f32, 0};
    s.captures["bytes"] = {DType::u8, 1};
    s.captures["both"] = {DType::f32, 1};
    s.captures["h"] = {DType::f32, 1};
    s.params["both"] = ExprType::f32;
    s.params["window"] = ExprType::i32;
    s.params["alpha"] = ExprType::f32;
    s.params["causal"] = ExprType::boolean;
    return s;
  }();
  return symbols;
}

std::string refusal(std::string_view text) {
  try {
    const Expr e = parse(text, symbols());
    return "accepted: " + print(e);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

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
    const std::string first = refusal(text);
    EXPECT_EQ(first, std::string("accepted: ") + printed);
    EXPECT_EQ(refusal(printed), first);
  }
}

struct Refusal {
  const char* text;
  const char* sentence;
  std::size_t column;
};

TEST(Text, EveryRefusalPointsAtItsPlace) {
  const std::vector<Refusal> table = {
      {"", "the text ends where a value was expected", 0},
      {"score +", "the text ends where a value was expected", 7},
      {"score + + * 2", "expected a value but found '*'", 10},
      {"score 2", "expected an operator or the end but found '2'", 6},
      {"(score", "the text ends where ')' was expected", 6},
      {"score)", "expected an operator or the end but found ')'", 5},
      {"min(h b)", "expected ',' or ')' but found 'b'", 6},
      {"min(h", "the text ends where ',' or ')' was expected", 5},
      {"exp()", "expected a value but found ')'", 4},
      {"exp score", "expected '(' but found 'score'", 4},
      {"h if causal", "the text ends where 'else' was expected", 11},
      {"score + kv_idz", "unknown name 'kv_idz'; did you mean 'kv_idx'?", 8},
      {"zzzzzzzzzzz",
       "unknown name 'zzzzzzzzzzz'; known are score, b, h, q_idx, kv_idx, q_token, kv_token, q_len, kv_len, q_start, "
       "kv_start, bias, both, bytes, doc, gain, open, slopes, alpha, causal, window",
       0},
      {"1 + tnh(h)", "unknown function 'tnh'; did you mean 'tanh'?", 4},
      {"1 + float(h)", "unknown function 'float'; did you mean 'f32'?", 4},
      {"int(1.5) + h", "unknown function 'int'; did you mean 'i32'?", 0},
      {"h in b", "expected an operator or the end but found 'in'", 2},
      {"is", "expected a value but found 'is'", 0},
      {"slopes", "'slopes' is a tensor of rank 1; read it as slopes[...]", 0},
      {"slopes(h)", "'slopes' is a capture, not a function; read it as slopes[...]", 0},
      {"1 + bias[h]", "capture 'bias' has rank 2 but is read with 1 index", 4},
      {"gain[0]", "capture 'gain' has rank 0 but is read with 1 index", 0},
      {"slopes[score]", "index 0 of capture 'slopes' must be i32, but `score` is f32; convert it with i32(...)", 0},
      {"slopes[]", "expected a value but found ']'", 7},
      {"slopes[h)", "expected ',' or ']' but found ')'", 8},
      {"score[h]", "only captures are indexed", 5},
      {"(score)[h]", "only captures are indexed", 7},
      {"h(1)", "expected an operator or the end but found '('", 1},
      {"at(score, 1, 2)", "expected the name of a capture but found 'score'", 3},
      {"at(h, 1, 2)", "expected the name of a capture but found 'h'", 3},
      {"at(slope, 1, 2)", "unknown name 'slope'; did you mean 'slopes'?", 3},
      {"at(slopes, 1)", "capture 'slopes' has rank 1 but is read with 0 indices", 0},
      {"at(doc, 1, 2.5)", "the fill of capture 'doc' must be i32, but `2.5` is f32", 0},
      {"both", "'both' is both a capture and a param", 0},
      {"2147483648", "this integer does not fit i32 (-2147483648 to 2147483647); write 1e10 for a real number", 0},
      {"-2147483649", "this integer does not fit i32 (-2147483648 to 2147483647); write 1e10 for a real number", 1},
      {"-2147483648 ** 2", "this integer does not fit i32 (-2147483648 to 2147483647); write 1e10 for a real number",
       1},
      {"h + 99999999999999999999999",
       "this integer does not fit i32 (-2147483648 to 2147483647); write 1e10 for a "
       "real number",
       4},
      {"1e999", "this number is outside the range of f64; write inf or 0.0", 0},
      {"0x10", "this number is followed by something else; numbers are written 3, 3.5 or 1e-3", 1},
      {"3h", "this number is followed by something else; numbers are written 3, 3.5 or 1e-3", 1},
      {"1.5.2", "this number is followed by something else; numbers are written 3, 3.5 or 1e-3", 3},
      {"1e", "this number is followed by something else; numbers are written 3, 3.5 or 1e-3", 1},
      {"h && b", "'&&' has no meaning here: write 'and'", 2},
      {"h || b", "'||' has no meaning here: write 'or'", 2},
      {"!causal", "'!' has no meaning here: write 'not'", 0},
      {"h = b", "'=' has no meaning here: write '==' to compare, and 'name = expression;' before the mod", 2},
      {"causal ? h : b", "'?' has no meaning here: write 'x if condition else y'", 7},
      {"h @ b", "this character has no meaning here", 2},
      {"h . b", "this character has no meaning here", 2},
      {"clip(h, 1)", "clip takes 3 arguments, but 2 were given", 0},
      {"1 + exp(h, 1)", "exp takes 1 argument, but 2 were given", 4},
      {"min(h)", "min takes 2 or more arguments, but 1 was given", 0},
      {"where(h, 1, 2)", "the condition of where must be bool, but `h` is i32", 0},
      {"1 if h else 2", "the condition of where must be bool, but `h` is i32", 2},
      {"where(causal, 1, causal)",
       "where chooses between two numbers or two bools, but `1` is i32 and `causal` is bool", 0},
      {"h + (h < b)",
       "+ needs numbers, but `h < b` is bool; convert it with i32(...) or f32(...), or choose with where(...)", 2},
      {"-causal",
       "- needs numbers, but `causal` is bool; convert it with i32(...) or f32(...), or choose with where(...)", 0},
      {"+causal", "+ needs numbers, but `causal` is bool", 0},
      {"causal < 1",
       "< needs numbers, but `causal` is bool; convert it with i32(...) or f32(...), or choose with where(...)", 7},
      {"1 == causal",
       "== needs numbers, but `causal` is bool; convert it with i32(...) or f32(...), or choose with where(...)", 2},
      {"h and causal", "and combines bool only, but `h` is i32; compare it with something", 2},
      {"not h", "not combines bool only, but `h` is i32; compare it with something", 0},
      {"causal & h",
       "'&' combines two bool or two i32, but `causal` is bool and `h` is i32; it binds tighter than comparisons: put "
       "them in brackets",
       7},
      {"h | score",
       "'|' combines two bool or two i32, but `h` is i32 and `score` is f32; it binds tighter than comparisons: put "
       "them in brackets",
       2},
      {"causal ^ 1",
       "'^' combines two bool or two i32, but `causal` is bool and `1` is i32; it binds tighter than comparisons: put "
       "them in brackets",
       7},
      {"~score", "an operand of ~ must be i32, but `score` is f32; convert it with i32(...)", 0},
      {"h << 1.0", "an operand of << must be i32, but `1.0` is f32; convert it with i32(...)", 2},
      {"causal >> 1", "an operand of >> must be i32, but `causal` is bool; convert it with i32(...)", 7},
      {"isnan(causal)",
       "isnan needs numbers, but `causal` is bool; convert it with i32(...) or f32(...), or choose with where(...)", 0},
      {"relu(h, 1)", "relu takes 1 argument, but 2 were given", 0},
      {"relu(causal)",
       "max needs numbers, but `causal` is bool; convert it with i32(...) or f32(...), or choose with where(...)", 0},
      {"h == not causal", "'not' binds weaker than what stands before it: put 'not ...' in brackets", 5},
      {"random_uniform(1.5, b, h, q_idx, kv_idx)",
       "an argument of random_uniform must be i32, but `1.5` is f32; convert it with i32(...)", 0},
  };
  for (const Refusal& row : table) {
    EXPECT_EQ(refusal(row.text),
              std::string(row.sentence) + "\n  " + row.text + "\n  " + std::string(row.column, ' ') + "^");
  }
}

TEST(Text, TheCaretStandsUnderTheCharacter) {
  EXPECT_THAT(refusal("h\t+\n\xC3\xA9"), HasSubstr("\n  h + \xC3\xA9\n      ^"));
  EXPECT_THAT(refusal("doc[\xE2\x82\xAC] + $"), HasSubstr("\n  doc[\xE2\x82\xAC] + $\n      ^"));
  EXPECT_THAT(refusal("h \xF0\x9F\x98\x80"), HasSubstr("\n  h \xF0\x9F\x98\x80\n    ^"));
  EXPECT_THAT(refusal("h +\x01"), HasSubstr("\n  h +\xEF\xBF\xBD\n     ^"));
  EXPECT_THAT(refusal("h + \xFF\xC3"), HasSubstr("\n  h + \xEF\xBF\xBD\xEF\xBF\xBD\n      ^"));
  EXPECT_THAT(refusal(std::string_view("h + \0 1", 7)), HasSubstr("\n  h + \xEF\xBF\xBD 1\n      ^"));
}

TEST(Text, ALongTextIsCutAroundTheCaret) {
  std::string text = "h";
  for (int i = 0; i < 200; ++i) text += " + h";
  const std::string end = refusal(text + " + zzzzzzzz");
  EXPECT_THAT(end, HasSubstr("\n  ... h + h"));
  const std::string middle = refusal(text + " + zzzzzzzz + " + text);
  for (const std::string& message : {end, middle}) {
    const std::size_t line = message.find('\n');
    const std::size_t caret = message.find('\n', line + 1);
    ASSERT_NE(caret, std::string::npos);
    EXPECT_EQ(caret - line - 1, 102U);
    EXPECT_EQ(message.substr(line + 1 + message.size() - 1 - (caret + 1), 8), "zzzzzzzz");
  }
  EXPECT_THAT(middle, HasSubstr(" ...\n"));
}

// Any name of two letters that has it would be as close.
TEST(Text, AnUnknownLetterIsTakenForNoOtherName) {
  Symbols known;
  known.captures["qs"] = {DType::f32, 1};
  expect_error([&] { parse("score + q", known); }, ErrorCode::invalid_argument,
               HasSubstr("unknown name 'q'; known are score, b, h, "));
}

TEST(Text, SizeAndNestingAreLimited) {
  const auto nested = [](const std::string& open, int levels, const std::string& close) {
    std::string text, end;
    for (int i = 0; i < levels; ++i) {
      text += open;
      end += close;
    }
    return refusal(text + "h" + end);
  };
  EXPECT_EQ(nested("(", 256, ")"), "accepted: h");
  for (const auto& [open, close] :
       {std::pair{"(", ")"}, {"-", ""}, {"exp(", ")"}, {"h**", ""}, {"1 if h>0 else ", ""}}) {
    EXPECT_THAT(nested(open, 256, close), StartsWith("accepted: ")) << open;
    EXPECT_THAT(nested(open, 257, close), StartsWith("the text nests deeper than 256 levels here")) << open;
  }
  EXPECT_THAT(refusal(std::string(60000, '(')), StartsWith("the text nests deeper than 256 levels here"));
  EXPECT_THAT(refusal(std::string(60000, '-') + "h"), StartsWith("the text nests deeper than 256 levels here"));
  std::string powers = "h";
  std::string nots;
  for (int i = 0; i < 5000; ++i) {
    powers += "**h";
    nots += "not ";
  }
  EXPECT_THAT(refusal(powers), StartsWith("the text nests deeper than 256 levels here"));
  EXPECT_THAT(refusal(nots + "causal"), StartsWith("the text nests deeper than 256 levels here"));
  EXPECT_THAT(refusal(std::string(65537, ' ')),
              StartsWith("the text of an expression has 65537 bytes; accepted are at most 65536"));
  std::string sum = "h";
  for (int i = 0; i < 1000; ++i) sum += "+h";
  EXPECT_THAT(refusal(sum), StartsWith("accepted: h + h"));
  EXPECT_THAT(refusal(sum + "+h"), StartsWith("an expression nests more than 1000 operations deep"));
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
  const Expr e = parse("score * alpha + slopes[h] + where(causal, 1, doc[window])", symbols());
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
