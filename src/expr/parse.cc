// The text form: precedence climbing over the levels of grammar.h.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "expr/caret.h"
#include "expr/grammar.h"
#include "expr/lex.h"
#include "expr/names.h"
#include "heddle/error.h"

namespace heddle {
namespace expr {
namespace {

struct Infix {
  Op op;
  Level level;
};

std::optional<Infix> infix_of(const Token& token) {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    if (info(op).form == Form::infix && info(op).text == token.text) return Infix{op, level(op)};
  }
  return std::nullopt;
}

bool is_constant_name(std::string_view text) {
  return text == "True" || text == "true" || text == "False" || text == "false" || text == "inf" || text == "nan";
}

Expr constant_named(std::string_view text) {
  if (text == "inf") return Expr(std::numeric_limits<double>::infinity());
  if (text == "nan") return Expr(std::numeric_limits<double>::quiet_NaN());
  return Expr(text == "True" || text == "true");
}

class Parser {
 public:
  Parser(std::string_view text, const Symbols& symbols) : text_(text), symbols_(symbols), tokens_(lex(text)) {}

  Expr whole() {
    while (here().kind == TokenKind::name && ahead().text == "=") bind();
    Expr e = conditional();
    if (here().kind != TokenKind::end) fail(here(), unexpected("an operator or the end"));
    return e;
  }

 private:
  /// Counts the levels of recursion.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser.nesting_ > kMaxNesting) {
        parser.fail(parser.here(), fmt::format("the text nests deeper than {} levels here", kMaxNesting));
      }
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  const Token& here() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool is(std::string_view text) const { return here().text == text; }
  const Token& take() { return here().kind == TokenKind::end ? tokens_[at_] : tokens_[at_++]; }
  bool accept(std::string_view text) {
    const bool found = is(text);
    if (found) take();
    return found;
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail(here(), unexpected(fmt::format("'{}'", text)));
  }

  [[noreturn]] void fail(const Token& token, const std::string& sentence) const {
    fail_at(text_, token.offset, sentence);
  }
  std::string unexpected(std::string_view expected) const {
    if (is("=")) return "'=' has no meaning here: write '==' to compare, and 'name = expression;' before the mod";
    if (here().kind == TokenKind::end) return fmt::format("the text ends where {} was expected", expected);
    return fmt::format("expected {} but found '{}'", expected, here().text.substr(0, 60));
  }

  /// `name = expression;`: the name stands for the expression from here on.
  void bind() {
    const Token& token = take();
    const std::string name(token.text);
    if (is_reserved(name) || symbols_.captures.contains(name) || symbols_.params.contains(name)) {
      fail(here(), unexpected("an operator or the end"));
    }
    take();
    Expr value = conditional();
    expect(";");
    bound_.insert_or_assign(name, std::move(value));
  }

  /// Errors of building become errors at this token.
  template <class F>
  Expr built(const Token& token, F&& build_it) const {
    try {
      return build_it();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      fail(token, error.what());
    }
  }
  Expr built(const Token& token, Op op, std::span<const Expr> operands) const {
    return built(token, [&] { return build(op, operands); });
  }

  Expr conditional() {
    const Nested nested(*this);
    Expr yes = binary(Level::logical_or);
    if (!is("if")) return yes;
    const Token& token = take();
    const Expr condition = binary(Level::logical_or);
    expect("else");
    const Expr no = conditional();
    return built(token, Op::where, std::array{condition, yes, no});
  }

  /// Everything from here that binds at least as tightly as `least`.
  Expr binary(Level least) {
    Expr left = is("not") ? negation(least) : prefixed();
    while (true) {
      const std::optional<Infix> infix = infix_of(here());
      if (!infix || infix->level < least) return left;
      if (infix->level == Level::comparison) {
        left = comparisons(left);
        continue;
      }
      const Token& token = take();
      const Expr right = binary(tighter(infix->level));
      left = joined(token, infix->op, left, right);
    }
  }

  Expr joined(const Token& token, Op op, const Expr& left, const Expr& right) const {
    if (token.text != "&" && token.text != "|" && token.text != "^") return built(token, op, std::array{left, right});
    if (left.type() != right.type() || left.type() == ExprType::f32) fail(token, refuses_bits(token, left, right));
    return built(token, left.type() == ExprType::i32 ? op : of_booleans(op), std::array{left, right});
  }

  static std::string refuses_bits(const Token& token, const Expr& left, const Expr& right) {
    return fmt::format(
        "'{}' combines two bool or two i32, but {} is {} and {} is {}; it binds tighter than comparisons: put them in "
        "brackets",
        token.text, quote(left), name(left.type()), quote(right), name(right.type()));
  }

  /// a < b <= c is a < b and b <= c.
  Expr comparisons(Expr left) {
    Expr all;
    while (true) {
      const std::optional<Infix> infix = infix_of(here());
      if (!infix || infix->level != Level::comparison) return all;
      const Token& token = take();
      const Expr right = binary(tighter(Level::comparison));
      const Expr link = built(token, infix->op, std::array{left, right});
      all = all.empty() ? link : built(token, Op::logical_and, std::array{all, link});
      left = right;
    }
  }

  Expr negation(Level least) {
    const Nested nested(*this);
    const Token& token = take();
    if (least > Level::logical_not)
      fail(token, "'not' binds weaker than what stands before it: put 'not ...' in brackets");
    return built(token, Op::logical_not, std::array{binary(Level::logical_not)});
  }

  /// - + ~ before a power.
  Expr prefixed() {
    if (!is("-") && !is("+") && !is("~")) return power();
    const Nested nested(*this);
    const Token& token = take();
    if (token.text == "-" && here().text == "2147483648" && ahead().text != "**") {
      take();
      return Expr(std::numeric_limits<std::int32_t>::min());
    }
    Expr operand = prefixed();
    if (token.text == "-") return built(token, Op::neg, std::array{operand});
    if (token.text == "~") {
      if (operand.type() == ExprType::boolean) return !operand;
      return built(token, Op::bit_not, std::array{operand});
    }
    if (operand.type() == ExprType::boolean) {
      fail(token, fmt::format("+ needs numbers, but {} is bool", quote(operand)));
    }
    return operand;
  }

  Expr power() {
    Expr base = primary();
    if (!is("**")) return base;
    const Nested nested(*this);
    const Token& token = take();
    return built(token, Op::pow, std::array{base, prefixed()});
  }

  Expr primary() {
    const Token& token = here();
    Expr e;
    if (token.kind == TokenKind::name) {
      e = named();
    } else if (token.kind == TokenKind::integer || token.kind == TokenKind::real) {
      e = number(take());
    } else if (accept("(")) {
      e = conditional();
      expect(")");
    } else {
      fail(token, unexpected("a value"));
    }
    if (is("[")) fail(here(), "only captures are indexed");
    if (is("(")) fail(here(), unexpected("an operator or the end"));
    return e;
  }

  Expr number(const Token& token) const {
    const char* end = token.text.data() + token.text.size();
    if (token.kind == TokenKind::integer) {
      std::int32_t value = 0;
      if (std::from_chars(token.text.data(), end, value).ec == std::errc()) return Expr(value);
      fail(token, "this integer does not fit i32 (-2147483648 to 2147483647); write 1e10 for a real number");
    }
    double value = 0;
    if (std::from_chars(token.text.data(), end, value).ec == std::errc()) return Expr(value);
    fail(token, "this number is outside the range of f64; write inf or 0.0");
  }

  Expr named() {
    const Token& token = here();
    const std::string name(token.text);
    if (is_constant_name(name)) return constant_named(take().text);
    if (const auto leaf = leaf_named(name)) {
      take();
      return make(Op::leaf, ExprType::i32, {}, *leaf);
    }
    if (call_named(name) || composite_named(name) != nullptr) return call();
    if (is_reserved(name)) fail(token, unexpected("a value"));
    if (const auto found = bound_.find(name); found != bound_.end()) {
      take();
      return found->second;
    }
    const bool is_param = symbols_.params.contains(name);
    if (symbols_.captures.contains(name)) {
      if (is_param) fail(token, fmt::format("'{}' is both a capture and a param", name));
      return read();
    }
    if (!is_param) fail(token, ahead().text == "(" ? unknown_function(name) : unknown_name(name, symbols_));
    take();
    return built(token, [&] { return param(name, symbols_.params.at(name)); });
  }

  /// The capture that the next token names.
  Capture capture() {
    const std::string name(here().text);
    const auto found = symbols_.captures.find(name);
    if (found == symbols_.captures.end() || is_reserved(name)) {
      fail(here(), here().kind == TokenKind::name && !is_reserved(name) ? unknown_name(name, symbols_)
                                                                        : unexpected("the name of a capture"));
    }
    std::optional<Capture> capture;
    built(here(), [&] {
      capture.emplace(name, found->second.dtype, found->second.rank);
      return Expr();
    });
    take();
    return *capture;
  }

  Expr read() {
    const Token& token = here();
    const Capture x = capture();
    if (is("(")) fail(token, fmt::format("'{}' is a capture, not a function; read it as {}[...]", x.name(), x.name()));
    if (!is("[") && x.rank() > 0) {
      fail(token, fmt::format("'{}' is a tensor of rank {}; read it as {}[...]", x.name(), x.rank(), x.name()));
    }
    std::vector<Expr> indices;
    if (accept("[")) indices = list("]");
    return built(token, [&] { return x.read(indices); });
  }

  Expr call() {
    const Token& token = take();
    expect("(");
    if (token.text == "at") return at_call(token);
    const std::vector<Expr> given = list(")");
    if (const Composite* composite = composite_named(token.text)) {
      require_count(token, composite->arity, given.size());
      return built(token, [&] { return composite->build(given); });
    }
    const Op op = *call_named(token.text);
    if (op == Op::min || op == Op::max) return folded(token, op, given);
    require_count(token, static_cast<std::size_t>(info(op).arity), given.size());
    return built(token, op, given);
  }

  void require_count(const Token& token, std::size_t wanted, std::size_t given) const {
    if (given == wanted) return;
    fail(token, fmt::format("{} takes {} argument{}, but {} {} given", token.text, wanted, wanted == 1 ? "" : "s",
                            given, given == 1 ? "was" : "were"));
  }

  Expr folded(const Token& token, Op op, const std::vector<Expr>& given) const {
    if (given.size() < 2) fail(token, fmt::format("{} takes 2 or more arguments, but 1 was given", token.text));
    Expr e = given[0];
    for (std::size_t i = 1; i < given.size(); ++i) e = built(token, op, std::array{e, given[i]});
    return e;
  }

  Expr at_call(const Token& token) {
    const Capture x = capture();
    expect(",");
    std::vector<Expr> given = list(")");
    const Expr fill = given.back();
    given.pop_back();
    return built(token, [&] { return x.at(given, fill); });
  }

  /// One or more expressions, then `close`.
  std::vector<Expr> list(std::string_view close) {
    std::vector<Expr> all;
    do {
      all.push_back(conditional());
    } while (accept(","));
    if (!accept(close)) fail(here(), unexpected(fmt::format("',' or '{}'", close)));
    return all;
  }

  std::string_view text_;
  const Symbols& symbols_;
  std::vector<Token> tokens_;
  std::unordered_map<std::string, Expr> bound_;
  std::size_t at_ = 0;
  int nesting_ = -1;  // the whole text counts itself, but is no level
};

}  // namespace
}  // namespace expr

Expr parse(std::string_view text, const Symbols& symbols) {
  if (text.size() > expr::kMaxTextLength) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the text of an expression has {} bytes; accepted are at most {}", text.size(),
                            expr::kMaxTextLength));
  }
  return expr::Parser(text, symbols).whole();
}

}  // namespace heddle
