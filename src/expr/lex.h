// The words of the text form.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace heddle::expr {

enum class TokenKind : std::uint8_t { integer, real, name, symbol, end };

struct Token {
  TokenKind kind;
  std::string_view text;  // a part of the lexed text
  std::size_t offset;
};

/// All tokens, the last of kind `end`. Throws invalid_argument, with a caret, for a character or number that is none.
std::vector<Token> lex(std::string_view text);

}  // namespace heddle::expr
