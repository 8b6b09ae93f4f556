#include "expr/lex.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "expr/caret.h"

namespace heddle::expr {
namespace {

/// Longer ones first.
constexpr std::array<std::string_view, 26> kSymbols = {"**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+",
                                                       "-",  "*",  "/",  "%",  "<",  ">",  "&",  "|",  "^",
                                                       "~",  "(",  ")",  "[",  "]",  ",",  "=",  ";"};

/// Symbols of other languages, and the advice that the error gives.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kForeign = {{
    {"&&", "write 'and'"},
    {"||", "write 'or'"},
    {"!", "write 'not'"},
    {"?", "write 'x if condition else y'"},
}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> tokens() {
    std::vector<Token> all;
    while (at_ < text_.size()) {
      if (is_blank(text_[at_])) {
        ++at_;
      } else {
        all.push_back(next());
      }
    }
    all.push_back({TokenKind::end, {}, text_.size()});
    return all;
  }

 private:
  /// The character `ahead` of here, or 0 past the end.
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  Token next() {
    if (is_digit(peek()) || (peek() == '.' && is_digit(peek(1)))) return number();
    const std::size_t begin = at_;
    if (is_letter(peek())) {
      while (is_letter(peek()) || is_digit(peek())) ++at_;
      return {TokenKind::name, text_.substr(begin, at_ - begin), begin};
    }
    return symbol();
  }

  void skip_digits() {
    while (is_digit(peek())) ++at_;
  }

  Token number() {
    const std::size_t begin = at_;
    TokenKind kind = TokenKind::integer;
    skip_digits();
    if (peek() == '.') {
      kind = TokenKind::real;
      ++at_;
      skip_digits();
    }
    const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if ((peek() == 'e' || peek() == 'E') && is_digit(peek(1 + sign))) {
      kind = TokenKind::real;
      at_ += 1 + sign;
      skip_digits();
    }
    if (is_letter(peek()) || is_digit(peek()) || peek() == '.') {
      fail_at(text_, at_, "this number is followed by something else; numbers are written 3, 3.5 or 1e-3");
    }
    return {kind, text_.substr(begin, at_ - begin), begin};
  }

  Token symbol() {
    const std::string_view rest = text_.substr(at_);
    for (const auto& [foreign, advice] : kForeign) {
      if (rest.starts_with(foreign) && !rest.starts_with("!=")) {
        fail_at(text_, at_, fmt::format("'{}' has no meaning here: {}", foreign, advice));
      }
    }
    for (const std::string_view symbol : kSymbols) {
      if (!rest.starts_with(symbol)) continue;
      const Token token{TokenKind::symbol, rest.substr(0, symbol.size()), at_};
      at_ += symbol.size();
      return token;
    }
    fail_at(text_, at_, "this character has no meaning here");
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<Token> lex(std::string_view text) { return Lexer(text).tokens(); }

}  // namespace heddle::expr
