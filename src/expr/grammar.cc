#include "expr/grammar.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace heddle::expr {
namespace {

constexpr std::array<std::string_view, 13> kKeywords = {"and",  "or",    "not",  "if",    "else", "is", "in",
                                                        "True", "False", "true", "false", "inf",  "nan"};

constexpr std::array kComposites = {
    Composite{"clip", 3, [](std::span<const Expr> x) { return clip(x[0], x[1], x[2]); }},
    Composite{"relu", 1, [](std::span<const Expr> x) { return relu(x[0]); }},
    Composite{"softplus", 1, [](std::span<const Expr> x) { return softplus(x[0]); }},
    Composite{"gelu", 1, [](std::span<const Expr> x) { return gelu(x[0]); }},
    Composite{"gelu_tanh", 1, [](std::span<const Expr> x) { return gelu_tanh(x[0]); }},
    Composite{"silu", 1, [](std::span<const Expr> x) { return silu(x[0]); }},
};

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

Level level(Op op) {
  switch (op) {
    case Op::logical_or:
      return Level::logical_or;
    case Op::logical_and:
      return Level::logical_and;
    case Op::logical_not:
      return Level::logical_not;
    case Op::logical_xor:
    case Op::bit_xor:
      return Level::bit_xor;
    case Op::bit_or:
      return Level::bit_or;
    case Op::bit_and:
      return Level::bit_and;
    case Op::shift_left:
    case Op::shift_right:
      return Level::shift;
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
    case Op::eq:
    case Op::ne:
      return Level::comparison;
    case Op::add:
    case Op::sub:
      return Level::sum;
    case Op::mul:
    case Op::div:
    case Op::floor_div:
    case Op::mod:
      return Level::product;
    case Op::neg:
    case Op::bit_not:
      return Level::unary;
    default:
      return Level::atom;
  }
}

Op of_booleans(Op bits) {
  if (bits == Op::bit_and) return Op::logical_and;
  return bits == Op::bit_or ? Op::logical_or : Op::logical_xor;
}

std::optional<Leaf> leaf_named(std::string_view text) {
  for (int i = 0; i < kLeafCount; ++i) {
    const auto leaf = static_cast<Leaf>(i);
    if (name(leaf) == text) return leaf;
  }
  return std::nullopt;
}

std::span<const Composite> composites() { return kComposites; }

const Composite* composite_named(std::string_view text) {
  const auto found = std::ranges::find(kComposites, text, &Composite::name);
  return found == kComposites.end() ? nullptr : &*found;
}

std::optional<Op> call_named(std::string_view text) {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    if (info(op).form == Form::call && !text.empty() && info(op).text == text) return op;
  }
  return std::nullopt;
}

bool is_identifier(std::string_view text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::all_of(text.begin(), text.end(), is_word_character);
}

bool is_reserved(std::string_view text) {
  return std::find(kKeywords.begin(), kKeywords.end(), text) != kKeywords.end() || leaf_named(text) ||
         call_named(text) || composite_named(text) != nullptr;
}

}  // namespace heddle::expr
