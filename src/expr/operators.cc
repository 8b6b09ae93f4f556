// The public operators: promotion, type errors, and the names of captures and params.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "expr/grammar.h"
#include "expr/names.h"
#include "expr/node.h"
#include "heddle/error.h"

namespace heddle {
namespace expr {
namespace {

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

/// An operation as its user writes it.
std::string_view written(Op op) { return op == Op::logical_xor ? "^" : info(op).text; }

void require_given(Op op, std::span<const Expr> operands) {
  for (const Expr& x : operands) {
    if (x.empty()) refuse(fmt::format("{} was given an empty expression", written(op)));
  }
}

void require_number(Op op, const Expr& x) {
  if (x.type() != ExprType::boolean) return;
  refuse(
      fmt::format("{} needs numbers, but {} is bool; convert it with i32(...) or f32(...), or choose with where(...)",
                  written(op), quote(x)));
}

void require_i32(std::string_view what, const Expr& x) {
  if (x.type() == ExprType::i32) return;
  refuse(fmt::format("{} must be i32, but {} is {}; convert it with i32(...)", what, quote(x), name(x.type())));
}

void promote(std::span<Expr> operands) {
  bool any_f32 = false;
  for (const Expr& x : operands) any_f32 = any_f32 || x.type() == ExprType::f32;
  if (!any_f32) return;
  for (Expr& x : operands) x = to_f32(x);
}

Expr build_number(Op op, std::span<Expr> x) {
  for (const Expr& operand : x) require_number(op, operand);
  if (info(op).kind == Kind::real) {
    for (Expr& operand : x) operand = to_f32(operand);
  } else {
    promote(x);
  }
  return make(op, x[0].type(), x);
}

Expr build_bits(Op op, std::span<Expr> x) {
  for (const Expr& operand : x) require_i32(fmt::format("an operand of {}", written(op)), operand);
  return make(op, ExprType::i32, x);
}

/// The literal that an expression is, of i32.
std::optional<std::int32_t> literal_of(const Expr& x) {
  const Node& node = *x.node();
  if (node.op != Op::constant || node.type != ExprType::i32) return {};
  return node.i32();
}

/// x to the power `exponent`, by the binary digits of the exponent from the highest on.
Expr product_of(const Expr& x, std::int32_t exponent) {
  if (exponent == 0) return x.type() == ExprType::i32 ? Expr(1) : Expr(1.0);
  if (const std::optional<std::int32_t> literal = literal_of(x)) {  // a literal again, so that 2 ** 3 ** 2 is one
    std::uint32_t value = 1;
    for (int i = 0; i < exponent; ++i) value *= static_cast<std::uint32_t>(*literal);
    return Expr(static_cast<std::int32_t>(value));
  }
  Expr power = x;
  for (int digit = std::bit_width(static_cast<std::uint32_t>(exponent)) - 2; digit >= 0; --digit) {
    power = power * power;
    if ((exponent >> digit & 1) != 0) power = power * x;
  }
  return power;
}

/// i32 powers are exact modulo 2^32 as products, and a product of three f32 keeps to pow's error; of more it does not.
Expr build_power(std::span<Expr> x) {
  for (const Expr& operand : x) require_number(Op::pow, operand);
  constexpr std::int32_t kLargestOfI32 = 31, kLargestOfF32 = 3;
  if (const std::optional<std::int32_t> exponent = literal_of(x[1])) {
    const std::int32_t largest = x[0].type() == ExprType::i32 ? kLargestOfI32 : kLargestOfF32;
    if (*exponent >= 0 && *exponent <= largest) return product_of(x[0], *exponent);
  }
  for (Expr& operand : x) operand = to_f32(operand);
  return make(Op::pow, ExprType::f32, x);
}

Expr build_comparison(Op op, std::span<Expr> x) {
  const bool equality = op == Op::eq || op == Op::ne;
  if (equality && x[0].type() == ExprType::boolean && x[1].type() == ExprType::boolean) {
    const Expr differ = make(Op::logical_xor, ExprType::boolean, x);
    return op == Op::ne ? differ : !differ;
  }
  return build_number(op, x);
}

Expr build_logic(Op op, std::span<Expr> x) {
  for (const Expr& operand : x) {
    if (operand.type() == ExprType::boolean) continue;
    refuse(fmt::format("{} combines bool only, but {} is {}; compare it with something", written(op), quote(operand),
                       name(operand.type())));
  }
  return make(op, ExprType::boolean, x);
}

Expr build_where(std::span<Expr> x) {
  if (x[0].type() != ExprType::boolean) {
    refuse(fmt::format("the condition of where must be bool, but {} is {}", quote(x[0]), name(x[0].type())));
  }
  if ((x[1].type() == ExprType::boolean) != (x[2].type() == ExprType::boolean)) {
    refuse(fmt::format("where chooses between two numbers or two bools, but {} is {} and {} is {}", quote(x[1]),
                       name(x[1].type()), quote(x[2]), name(x[2].type())));
  }
  promote(x.subspan(1));
  return make(Op::where, x[1].type(), x);
}

/// Reads and `at`s: indices checked, `fill` (may be empty) promoted to the capture's type.
Expr build_read(const Capture& capture, std::vector<Expr> operands, bool with_fill) {
  const CaptureDecl decl{capture.name(), capture.dtype(), capture.rank()};
  const std::size_t indices = operands.size() - (with_fill ? 1 : 0);
  if (indices != static_cast<std::size_t>(decl.rank)) {
    refuse(fmt::format("capture '{}' has rank {} but is read with {} {}", decl.name, decl.rank, indices,
                       indices == 1 ? "index" : "indices"));
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].empty()) refuse(fmt::format("capture '{}' was given an empty expression", decl.name));
    if (i < indices) require_i32(fmt::format("index {} of capture '{}'", i, decl.name), operands[i]);
  }
  const ExprType type = read_type(decl.dtype);
  if (!with_fill) return make(Op::read, type, operands, decl);
  Expr& fill = operands.back();
  if (type == ExprType::f32 && fill.type() == ExprType::i32) fill = to_f32(fill);
  if (fill.type() != type) {
    refuse(fmt::format("the fill of capture '{}' must be {}, but {} is {}", decl.name, name(type), quote(fill),
                       name(fill.type())));
  }
  return make(Op::at, type, operands, decl);
}

/// & | ^ of two bools, or of two i32.
Expr build_and_or_xor(Op bits, const Expr& x, const Expr& y) {
  require_given(bits, std::array{x, y});
  const bool integers = x.type() == ExprType::i32 && y.type() == ExprType::i32;
  const bool booleans = x.type() == ExprType::boolean && y.type() == ExprType::boolean;
  if (integers || booleans) return build(integers ? bits : of_booleans(bits), std::array{x, y});
  refuse(fmt::format("{} combines two bool or two i32, but {} is {} and {} is {}", written(bits), quote(x),
                     name(x.type()), quote(y), name(y.type())));
}

Expr cast(Op op, ExprType to, const Expr& x) {
  require_given(op, std::span(&x, 1));
  return x.type() == to ? x : make(op, to, std::span(&x, 1));
}

Expr leaf_expr(Leaf leaf) { return make(Op::leaf, ExprType::i32, {}, leaf); }

Expr unary(Op op, const Expr& x) { return build(op, std::span(&x, 1)); }
Expr binary(Op op, const Expr& x, const Expr& y) { return build(op, std::array{x, y}); }

}  // namespace

Expr build(Op op, std::span<const Expr> operands) {
  const OpInfo& row = info(op);
  if (row.form == Form::leaf || row.kind == Kind::read || static_cast<int>(operands.size()) != row.arity) {
    throw Error(ErrorCode::internal, fmt::format("build was asked for {} of {} operands", row.name, operands.size()));
  }
  require_given(op, operands);
  std::vector<Expr> x(operands.begin(), operands.end());
  if (op == Op::pow) return build_power(x);
  switch (row.kind) {
    case Kind::bits:
      return build_bits(op, x);
    case Kind::test:
      require_number(op, x[0]);
      return make(op, ExprType::boolean, std::array{to_f32(x[0])});
    case Kind::cmp:
      return build_comparison(op, x);
    case Kind::logic:
      return build_logic(op, x);
    case Kind::where:
      return build_where(x);
    case Kind::cast:
      return op == Op::to_f32 ? to_f32(x[0]) : to_i32(x[0]);
    case Kind::random:
      for (const Expr& operand : x) require_i32("an argument of random_uniform", operand);
      return make(op, ExprType::f32, x);
    case Kind::num:
    case Kind::real:
    case Kind::read:
      break;
  }
  return build_number(op, x);
}

}  // namespace expr

using expr::Op;

std::string_view name(ExprType type) { return type == ExprType::f32 ? "f32" : type == ExprType::i32 ? "i32" : "bool"; }

ExprType Expr::type() const {
  if (empty()) throw Error(ErrorCode::invalid_argument, "an empty expression has no type");
  return node_->type;
}

Expr Expr::int_literal(std::int64_t value) {
  if (!std::in_range<std::int32_t>(value)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an integer literal must fit i32 (-2147483648 to 2147483647), but {} does not", value));
  }
  return expr::make(Op::constant, ExprType::i32, {}, static_cast<std::int32_t>(value));
}
Expr Expr::float_literal(double value) { return expr::make(Op::constant, ExprType::f32, {}, value); }
Expr Expr::bool_literal(bool value) { return expr::make(Op::constant, ExprType::boolean, {}, value); }

namespace leaf {
Expr score() { return expr::leaf_expr(expr::Leaf::score); }
Expr b() { return expr::leaf_expr(expr::Leaf::b); }
Expr h() { return expr::leaf_expr(expr::Leaf::h); }
Expr q_idx() { return expr::leaf_expr(expr::Leaf::q_idx); }
Expr kv_idx() { return expr::leaf_expr(expr::Leaf::kv_idx); }
Expr q_token() { return expr::leaf_expr(expr::Leaf::q_token); }
Expr kv_token() { return expr::leaf_expr(expr::Leaf::kv_token); }
Expr q_len() { return expr::leaf_expr(expr::Leaf::q_len); }
Expr kv_len() { return expr::leaf_expr(expr::Leaf::kv_len); }
Expr q_start() { return expr::leaf_expr(expr::Leaf::q_start); }
Expr kv_start() { return expr::leaf_expr(expr::Leaf::kv_start); }
}  // namespace leaf

Expr param(std::string name, ExprType type) {
  require_name("param", name);
  return expr::make(Op::param, type, {}, expr::ParamDecl{std::move(name)});
}

Capture::Capture(std::string name, DType dtype, int rank) : name_(std::move(name)), dtype_(dtype), rank_(rank) {
  require_name("capture", name_);
  expr::read_type(dtype);
  if (rank < 0 || rank > kMaxRank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("capture '{}' was given rank {}; accepted are 0 to {}", name_, rank, kMaxRank));
  }
}

Expr Capture::read(std::vector<Expr> indices) const { return expr::build_read(*this, std::move(indices), false); }

Expr Capture::at(std::vector<Expr> indices, Expr fill) const {
  indices.push_back(std::move(fill));
  return expr::build_read(*this, std::move(indices), true);
}

Expr operator+(const Expr& x, const Expr& y) { return expr::binary(Op::add, x, y); }
Expr operator-(const Expr& x, const Expr& y) { return expr::binary(Op::sub, x, y); }
Expr operator*(const Expr& x, const Expr& y) { return expr::binary(Op::mul, x, y); }
Expr operator/(const Expr& x, const Expr& y) { return expr::binary(Op::div, x, y); }
Expr operator%(const Expr& x, const Expr& y) { return expr::binary(Op::mod, x, y); }
Expr operator-(const Expr& x) { return expr::unary(Op::neg, x); }
Expr floor_div(const Expr& x, const Expr& y) { return expr::binary(Op::floor_div, x, y); }
Expr min(const Expr& x, const Expr& y) { return expr::binary(Op::min, x, y); }
Expr max(const Expr& x, const Expr& y) { return expr::binary(Op::max, x, y); }
Expr clip(const Expr& x, const Expr& low, const Expr& high) { return min(max(x, low), high); }

Expr operator<(const Expr& x, const Expr& y) { return expr::binary(Op::lt, x, y); }
Expr operator<=(const Expr& x, const Expr& y) { return expr::binary(Op::le, x, y); }
Expr operator>(const Expr& x, const Expr& y) { return expr::binary(Op::gt, x, y); }
Expr operator>=(const Expr& x, const Expr& y) { return expr::binary(Op::ge, x, y); }
Expr operator==(const Expr& x, const Expr& y) { return expr::binary(Op::eq, x, y); }
Expr operator!=(const Expr& x, const Expr& y) { return expr::binary(Op::ne, x, y); }
Expr operator&(const Expr& x, const Expr& y) { return expr::build_and_or_xor(Op::bit_and, x, y); }
Expr operator|(const Expr& x, const Expr& y) { return expr::build_and_or_xor(Op::bit_or, x, y); }
Expr operator^(const Expr& x, const Expr& y) { return expr::build_and_or_xor(Op::bit_xor, x, y); }
Expr operator&&(const Expr& x, const Expr& y) { return expr::binary(Op::logical_and, x, y); }
Expr operator||(const Expr& x, const Expr& y) { return expr::binary(Op::logical_or, x, y); }
Expr operator!(const Expr& x) { return expr::unary(Op::logical_not, x); }
Expr operator~(const Expr& x) {
  const bool boolean = !x.empty() && x.type() == ExprType::boolean;
  return expr::unary(boolean ? Op::logical_not : Op::bit_not, x);
}
Expr operator<<(const Expr& x, const Expr& y) { return expr::binary(Op::shift_left, x, y); }
Expr operator>>(const Expr& x, const Expr& y) { return expr::binary(Op::shift_right, x, y); }
Expr where(const Expr& condition, const Expr& yes, const Expr& no) {
  return expr::build(Op::where, std::array{condition, yes, no});
}

#define HEDDLE_OP(name, form, text, arity, kind, ulp)
#define HEDDLE_FUNCTION(name, kind, ulp, what) \
  Expr name(const Expr& x) { return expr::unary(Op::name, x); }
#include "expr/ops.def"

Expr to_f32(const Expr& x) { return expr::cast(Op::to_f32, ExprType::f32, x); }
Expr to_i32(const Expr& x) { return expr::cast(Op::to_i32, ExprType::i32, x); }
Expr pow(const Expr& x, const Expr& y) { return expr::binary(Op::pow, x, y); }
Expr random_uniform(const Expr& seed, const Expr& b, const Expr& h, const Expr& q_idx, const Expr& kv_idx) {
  return expr::build(Op::random_uniform, std::array{seed, b, h, q_idx, kv_idx});
}

}  // namespace heddle
