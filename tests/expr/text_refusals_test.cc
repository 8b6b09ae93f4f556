// Texts that are no expression: every refusal points at its place; sizes and nesting have limits.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "expect_error.h"
#include "expr/text_symbols.h"

namespace heddle::expr {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Refusal {
  const char* text;
  const char* sentence;
  std::size_t column;
};

TEST(TextRefusals, EveryRefusalPointsAtItsPlace) {
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
    EXPECT_EQ(outcome_of(row.text),
              std::string(row.sentence) + "\n  " + row.text + "\n  " + std::string(row.column, ' ') + "^");
  }
}

TEST(TextRefusals, TheCaretStandsUnderTheCharacter) {
  EXPECT_THAT(outcome_of("h\t+\n\xC3\xA9"), HasSubstr("\n  h + \xC3\xA9\n      ^"));
  EXPECT_THAT(outcome_of("doc[\xE2\x82\xAC] + $"), HasSubstr("\n  doc[\xE2\x82\xAC] + $\n      ^"));
  EXPECT_THAT(outcome_of("h \xF0\x9F\x98\x80"), HasSubstr("\n  h \xF0\x9F\x98\x80\n    ^"));
  EXPECT_THAT(outcome_of("h +\x01"), HasSubstr("\n  h +\xEF\xBF\xBD\n     ^"));
  EXPECT_THAT(outcome_of("h + \xFF\xC3"), HasSubstr("\n  h + \xEF\xBF\xBD\xEF\xBF\xBD\n      ^"));
  EXPECT_THAT(outcome_of(std::string_view("h + \0 1", 7)), HasSubstr("\n  h + \xEF\xBF\xBD 1\n      ^"));
}

TEST(TextRefusals, ALongTextIsCutAroundTheCaret) {
  std::string text = "h";
  for (int i = 0; i < 200; ++i) text += " + h";
  const std::string end = outcome_of(text + " + zzzzzzzz");
  EXPECT_THAT(end, HasSubstr("\n  ... h + h"));
  const std::string middle = outcome_of(text + " + zzzzzzzz + " + text);
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
TEST(TextRefusals, AnUnknownLetterIsTakenForNoOtherName) {
  Symbols known;
  known.captures["qs"] = {DType::f32, 1};
  expect_error([&] { parse("score + q", known); }, ErrorCode::invalid_argument,
               HasSubstr("unknown name 'q'; known are score, b, h, "));
}

TEST(TextRefusals, SizeAndNestingAreLimited) {
  const auto nested = [](const std::string& open, int levels, const std::string& close) {
    std::string text, end;
    for (int i = 0; i < levels; ++i) {
      text += open;
      end += close;
    }
    return outcome_of(text + "h" + end);
  };
  EXPECT_EQ(nested("(", 256, ")"), "accepted: h");
  for (const auto& [open, close] :
       {std::pair{"(", ")"}, {"-", ""}, {"exp(", ")"}, {"h**", ""}, {"1 if h>0 else ", ""}}) {
    EXPECT_THAT(nested(open, 256, close), StartsWith("accepted: ")) << open;
    EXPECT_THAT(nested(open, 257, close), StartsWith("the text nests deeper than 256 levels here")) << open;
  }
  EXPECT_THAT(outcome_of(std::string(60000, '(')), StartsWith("the text nests deeper than 256 levels here"));
  EXPECT_THAT(outcome_of(std::string(60000, '-') + "h"), StartsWith("the text nests deeper than 256 levels here"));
  std::string powers = "h";
  std::string nots;
  for (int i = 0; i < 5000; ++i) {
    powers += "**h";
    nots += "not ";
  }
  EXPECT_THAT(outcome_of(powers), StartsWith("the text nests deeper than 256 levels here"));
  EXPECT_THAT(outcome_of(nots + "causal"), StartsWith("the text nests deeper than 256 levels here"));
  EXPECT_THAT(outcome_of(std::string(65537, ' ')),
              StartsWith("the text of an expression has 65537 bytes; accepted are at most 65536"));
  std::string sum = "h";
  for (int i = 0; i < 1000; ++i) sum += "+h";
  EXPECT_THAT(outcome_of(sum), StartsWith("accepted: h + h"));
  EXPECT_THAT(outcome_of(sum + "+h"), StartsWith("an expression nests more than 1000 operations deep"));
}

}  // namespace
}  // namespace heddle::expr
