#include "expr/interpret.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "heddle/error.h"
#include "shared/philox.h"

namespace heddle::expr {
namespace {

using Operands = std::span<const Value>;

std::int32_t i32(const Value& x) { return std::get<std::int32_t>(x); }
std::uint32_t u32(const Value& x) { return static_cast<std::uint32_t>(i32(x)); }
bool boolean(const Value& x) { return std::get<bool>(x); }
bool is_i32(Operands x) { return std::holds_alternative<std::int32_t>(x[0]); }
Value wrapped(std::uint32_t x) { return static_cast<std::int32_t>(x); }

std::int32_t floor_div_i32(std::int32_t x, std::int32_t y) {
  if (y == 0) return 0;
  const std::int64_t wide_x = x;  // INT_MIN / -1 overflows i32
  const std::int64_t quotient = wide_x / y;
  const bool inexact = quotient * y != wide_x;
  return static_cast<std::int32_t>(inexact && (x < 0) != (y < 0) ? quotient - 1 : quotient);
}

std::int32_t mod_i32(std::int32_t x, std::int32_t y) {
  if (y == 0) return 0;
  const std::int64_t remainder = std::int64_t{x} % y;
  return static_cast<std::int32_t>(remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder);
}

/// One row for each operation, named as in ops.def. Real is the type that every result is rounded to; transcendentals
/// are computed in Wide.
template <class Real, class Wide>
struct Rows {
  using Row = Value (*)(Operands);

  static Real real(const Value& x) { return static_cast<Real>(std::get<double>(x)); }
  static Value value(Real x) { return static_cast<double>(x); }
  template <class F>
  static Value rounded(Operands x, F&& f) {
    return value(static_cast<Real>(f(static_cast<Wide>(std::get<double>(x[0])))));
  }
  template <class F>
  static Value compare(Operands x, F&& f) {
    return is_i32(x) ? f(i32(x[0]), i32(x[1])) : f(real(x[0]), real(x[1]));
  }

  // The interpreter knows these by their payload.
  static constexpr Row constant = nullptr;
  static constexpr Row leaf = nullptr;
  static constexpr Row param = nullptr;
  static constexpr Row read = nullptr;
  static constexpr Row at = nullptr;

  static Value add(Operands x) { return is_i32(x) ? wrapped(u32(x[0]) + u32(x[1])) : value(real(x[0]) + real(x[1])); }
  static Value sub(Operands x) { return is_i32(x) ? wrapped(u32(x[0]) - u32(x[1])) : value(real(x[0]) - real(x[1])); }
  static Value mul(Operands x) { return is_i32(x) ? wrapped(u32(x[0]) * u32(x[1])) : value(real(x[0]) * real(x[1])); }
  static Value div(Operands x) { return value(real(x[0]) / real(x[1])); }
  static Value floor_div(Operands x) {
    return is_i32(x) ? Value(floor_div_i32(i32(x[0]), i32(x[1]))) : value(std::floor(real(x[0]) / real(x[1])));
  }
  static Value mod(Operands x) {
    if (is_i32(x)) return mod_i32(i32(x[0]), i32(x[1]));
    const Real divisor = real(x[1]);
    const Real remainder = std::fmod(real(x[0]), divisor);
    if (remainder == 0) return value(std::copysign(Real{0}, divisor));
    return value((remainder < 0) != (divisor < 0) ? remainder + divisor : remainder);
  }
  static Value neg(Operands x) { return is_i32(x) ? wrapped(0U - u32(x[0])) : value(-real(x[0])); }
  static Value abs(Operands x) {
    if (is_i32(x)) return i32(x[0]) < 0 ? wrapped(0U - u32(x[0])) : x[0];
    return value(std::fabs(real(x[0])));
  }
  static Value min(Operands x) {
    if (is_i32(x)) return std::min(i32(x[0]), i32(x[1]));
    const Real a = real(x[0]);
    const Real b = real(x[1]);
    return value(std::isnan(a) || std::isnan(b) ? std::numeric_limits<Real>::quiet_NaN() : std::min(a, b));
  }
  static Value max(Operands x) {
    if (is_i32(x)) return std::max(i32(x[0]), i32(x[1]));
    const Real a = real(x[0]);
    const Real b = real(x[1]);
    return value(std::isnan(a) || std::isnan(b) ? std::numeric_limits<Real>::quiet_NaN() : std::max(a, b));
  }

  static Value sign(Operands x) {
    if (is_i32(x)) return (i32(x[0]) > 0 ? 1 : 0) - (i32(x[0]) < 0 ? 1 : 0);
    const Real a = real(x[0]);
    return value(a > 0 ? Real{1} : a < 0 ? Real{-1} : a);
  }

  static Value bit_and(Operands x) { return i32(x[0]) & i32(x[1]); }
  static Value bit_or(Operands x) { return i32(x[0]) | i32(x[1]); }
  static Value bit_xor(Operands x) { return i32(x[0]) ^ i32(x[1]); }
  static Value bit_not(Operands x) { return ~i32(x[0]); }
  static Value shift_left(Operands x) { return u32(x[1]) > 31 ? Value(0) : wrapped(u32(x[0]) << u32(x[1])); }
  static Value shift_right(Operands x) { return i32(x[0]) >> std::min(u32(x[1]), 31U); }

  static Value lt(Operands x) {
    return compare(x, [](auto a, auto b) { return a < b; });
  }
  static Value le(Operands x) {
    return compare(x, [](auto a, auto b) { return a <= b; });
  }
  static Value gt(Operands x) {
    return compare(x, [](auto a, auto b) { return a > b; });
  }
  static Value ge(Operands x) {
    return compare(x, [](auto a, auto b) { return a >= b; });
  }
  static Value eq(Operands x) {
    return compare(x, [](auto a, auto b) { return a == b; });
  }
  static Value ne(Operands x) {
    return compare(x, [](auto a, auto b) { return a != b; });
  }

  static Value isnan(Operands x) { return std::isnan(real(x[0])); }
  static Value isinf(Operands x) { return std::isinf(real(x[0])); }

  static Value logical_and(Operands x) { return boolean(x[0]) && boolean(x[1]); }
  static Value logical_or(Operands x) { return boolean(x[0]) || boolean(x[1]); }
  static Value logical_xor(Operands x) { return boolean(x[0]) != boolean(x[1]); }
  static Value logical_not(Operands x) { return !boolean(x[0]); }
  static Value where(Operands x) { return boolean(x[0]) ? x[1] : x[2]; }

  static Value to_f32(Operands x) {
    if (is_i32(x)) return value(static_cast<Real>(i32(x[0])));
    return value(boolean(x[0]) ? Real{1} : Real{0});
  }
  static Value to_i32(Operands x) {
    if (std::holds_alternative<bool>(x[0])) return boolean(x[0]) ? 1 : 0;
    const double whole = std::trunc(std::get<double>(x[0]));
    if (std::isnan(whole)) return 0;
    return static_cast<std::int32_t>(std::clamp(whole, -2147483648.0, 2147483647.0));
  }

  static Value floor(Operands x) { return value(std::floor(real(x[0]))); }
  static Value ceil(Operands x) { return value(std::ceil(real(x[0]))); }
  static Value round(Operands x) { return value(std::nearbyint(real(x[0]))); }  // in the mode of a new process
  static Value trunc(Operands x) { return value(std::trunc(real(x[0]))); }
  static Value sqrt(Operands x) { return value(std::sqrt(real(x[0]))); }
  static Value rsqrt(Operands x) {
    return rounded(x, [](Wide a) { return 1 / std::sqrt(a); });
  }
#define HEDDLE_REAL_FUNCTION(name)                          \
  static Value name(Operands x) {                           \
    return rounded(x, [](Wide a) { return std::name(a); }); \
  }
#include "shared/real_functions.def"
  static Value sigmoid(Operands x) {
    return rounded(x, [](Wide a) { return 1 / (1 + std::exp(-a)); });
  }
  static Value pow(Operands x) {
    return value(static_cast<Real>(
        std::pow(static_cast<Wide>(std::get<double>(x[0])), static_cast<Wide>(std::get<double>(x[1])))));
  }

  static Value random_uniform(Operands x) {
    return double{shared::random_uniform(u32(x[0]), u32(x[1]), u32(x[2]), u32(x[3]), u32(x[4]))};
  }

  static constexpr std::array<Row, kOpCount> table = {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) name,
#include "expr/ops.def"
  };
};

double to_precision(double x, Precision precision) {
  return precision == Precision::f32 ? static_cast<double>(static_cast<float>(x)) : x;
}

template <class T>
T load(const std::byte* address) {
  T x;
  std::memcpy(&x, address, sizeof x);
  return x;
}

Value zero(ExprType type) {
  return type == ExprType::f32 ? Value(0.0) : type == ExprType::i32 ? Value(0) : Value(false);
}

Value load_element(const ConstTensorView& view, std::int64_t offset, Precision precision) {
  const std::byte* address = static_cast<const std::byte*>(view.data) + offset * size_of(view.dtype);
  switch (view.dtype) {
    case DType::f64:
      return to_precision(load<double>(address), precision);
    case DType::f32:
      return double{load<float>(address)};
    case DType::f16:
      return double{to_f32(load<f16>(address))};
    case DType::bf16:
      return double{to_f32(load<bf16>(address))};
    case DType::e4m3:
      return double{to_f32(load<e4m3>(address))};
    case DType::e5m2:
      return double{to_f32(load<e5m2>(address))};
    case DType::i64:
    case DType::u64:
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(load<std::uint64_t>(address)));
    case DType::i32:
    case DType::u32:
      return load<std::int32_t>(address);
    case DType::i16:
      return std::int32_t{load<std::int16_t>(address)};
    case DType::u16:
      return std::int32_t{load<std::uint16_t>(address)};
    case DType::i8:
      return std::int32_t{load<std::int8_t>(address)};
    case DType::u8:
      return std::int32_t{load<std::uint8_t>(address)};
    case DType::boolean:
      return load<std::uint8_t>(address) != 0;
  }
  throw Error(ErrorCode::internal, "a capture of an unknown type was read");
}

/// read and at. For at, the last operand is the fill.
Value read_capture(const Node& node, const ConstTensorView& view, Operands operands, Precision precision) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t index = i32(operands[static_cast<std::size_t>(axis)]);
    const bool inside = index >= 0 && index < view.shape[axis];
    if (!inside && node.op == Op::at) return operands.back();
    if (view.shape[axis] == 0) return zero(node.type);
    offset += std::clamp<std::int64_t>(index, 0, view.shape[axis] - 1) * view.strides[axis];
  }
  return load_element(view, offset, precision);
}

Value leaf_value(Leaf leaf, const Element& element, Precision precision) {
  if (leaf == Leaf::score) return to_precision(element.score, precision);
  return element[leaf];
}

Value payload_value(const Node& node, const Bindings& bindings, Precision precision) {
  Value value = zero(node.type);
  if (node.op == Op::param) {
    value = bindings.params.at(node.param().name);
  } else if (node.op == Op::constant) {
    value = node.type == ExprType::f32   ? Value(node.f32())
            : node.type == ExprType::i32 ? Value(node.i32())
                                         : Value(node.boolean());
  }
  if (double* x = std::get_if<double>(&value)) *x = to_precision(*x, precision);
  return value;
}

}  // namespace

Value apply(Op op, ExprType result, Operands operands, Precision precision) {
  const auto row = precision == Precision::f32 ? Rows<float, double>::table[static_cast<std::size_t>(op)]
                                               : Rows<double, long double>::table[static_cast<std::size_t>(op)];
  if (row == nullptr) throw Error(ErrorCode::internal, fmt::format("{} is no operation on values", info(op).name));
  Value value = row(operands);
  if (value.index() != zero(result).index()) {
    throw Error(ErrorCode::internal, fmt::format("{} was applied to operands of another type", info(op).name));
  }
  return value;
}

Interpreter::Interpreter(const Expr& root, const Bindings& bindings, Precision precision)
    : Interpreter(root, bindings, precision, precision) {}

Interpreter::Interpreter(const Expr& root, const Bindings& bindings, Precision arithmetic, Precision given)
    : root_(root), arithmetic_(arithmetic), given_(given) {
  if (root.empty()) throw Error(ErrorCode::invalid_argument, "an empty expression cannot be evaluated");
  check_bound(root, bindings);
  std::unordered_map<const Node*, int> position;
  for (const Node* node : post_order(root)) {
    Step step{node, {}, payload_value(*node, bindings, given), {}};
    for (const auto& below : node->operands) step.operands.push_back(position.at(below.get()));
    if (info(node->op).kind == Kind::read) step.capture = bindings.captures.at(node->capture().name);
    position.emplace(node, static_cast<int>(steps_.size()));
    steps_.push_back(std::move(step));
  }
}

Value Interpreter::operator()(const Element& element) const {
  std::vector<Value> values(steps_.size());
  std::array<Value, kMaxRank + 1> operands;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const Node& node = *step.node;
    for (std::size_t k = 0; k < step.operands.size(); ++k) {
      operands[k] = values[static_cast<std::size_t>(step.operands[k])];
    }
    const Operands below = std::span(operands).first(step.operands.size());
    if (node.op == Op::leaf) {
      values[i] = leaf_value(node.leaf(), element, arithmetic_);
    } else if (info(node.op).kind == Kind::read) {
      values[i] = read_capture(node, step.capture, below, given_);
    } else if (node.op == Op::to_f32) {
      values[i] = apply(node.op, node.type, below, given_);
    } else {
      values[i] = below.empty() ? step.constant : apply(node.op, node.type, below, arithmetic_);
    }
  }
  return values.back();
}

}  // namespace heddle::expr
