// Shared by reading and printing: names, and how tightly each operation binds (Python's order).
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "expr/node.h"

namespace heddle::expr {

/// From the loosest to the tightest.
enum class Level : int {
  conditional,
  logical_or,
  logical_and,
  logical_not,
  comparison,
  bit_or,
  bit_xor,
  bit_and,
  shift,
  sum,
  product,
  unary,
  power,
  atom,
};
constexpr Level tighter(Level level) { return static_cast<Level>(static_cast<int>(level) + 1); }

/// How tightly the printed form of an operation binds.
Level level(Op op);

/// The operation of & | ^ on bool, from the one on i32.
Op of_booleans(Op bits);

/// Text longer than this is neither read nor printed; nested deeper in brackets and prefixes, it is not read.
inline constexpr std::size_t kMaxTextLength = std::size_t{64} * 1024;
inline constexpr int kMaxNesting = 256;
/// Text that would be longer, or nest deeper, is printed with names for its parts: `_1 = score * 2.0; exp(_1) + _1`.
inline constexpr std::size_t kMaxPlainLength = std::size_t{4} * 1024;
inline constexpr int kMaxPlainNesting = 200;

std::optional<Leaf> leaf_named(std::string_view name);
/// A function of expr.h that is made of operations, and has none of its own.
struct Composite {
  std::string_view name;
  std::size_t arity;
  Expr (*build)(std::span<const Expr> operands);
};
std::span<const Composite> composites();
/// Null for every other name.
const Composite* composite_named(std::string_view name);

/// The operation that is written as a call of this name.
std::optional<Op> call_named(std::string_view name);

bool is_identifier(std::string_view name);
/// True for names with a meaning of their own, which no capture and no param may have.
bool is_reserved(std::string_view name);

}  // namespace heddle::expr
