#include "backend/device_text/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "heddle/error.h"

namespace heddle::device_text {
namespace {

[[noreturn]] void missing(const std::string& name) {
  throw Error(ErrorCode::internal,
              fmt::format("'{}' is not in the layout of the mods, or is another type there", name));
}

}  // namespace

std::string literal(float x) {
  if (std::isnan(x)) return "ops::f32_param(0x7FC00000U)";
  if (std::isinf(x)) return x < 0 ? "ops::f32_param(0xFF800000U)" : "ops::f32_param(0x7F800000U)";
  return fmt::format("{:a}F", x);
}
std::string literal(double x) {
  if (std::isnan(x)) return "ops::f64_param(0U, 0x7FF80000U)";
  if (std::isinf(x)) return x < 0 ? "ops::f64_param(0U, 0xFFF00000U)" : "ops::f64_param(0U, 0x7FF00000U)";
  return fmt::format("{:a}", x);
}
std::string literal(std::int32_t x) { return x == INT32_MIN ? "(-2147483647 - 1)" : fmt::format("{}", x); }

// A switch and not a table, so that a new type does not compile without a name.
std::string_view storage_text(DType dtype, expr::Precision reals) {
  switch (dtype) {
    case DType::f64:
      return reals == expr::Precision::f64 ? "ExactF64" : "F64";
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "Bf16";
    case DType::e4m3:
      return "E4m3";
    case DType::e5m2:
      return "E5m2";
    case DType::i64:
    case DType::u64:
      return "I64";
    case DType::i32:
    case DType::u32:
      return "I32";
    case DType::i16:
      return "I16";
    case DType::u16:
      return "U16";
    case DType::i8:
      return "I8";
    case DType::u8:
      return "U8";
    case DType::boolean:
      return "Boolean";
  }
  throw Error(ErrorCode::internal, "a capture of an unknown type was read");
}

std::string_view type_text(ExprType type, expr::Precision reals) {
  if (type == ExprType::f32) return reals == expr::Precision::f64 ? "double" : "float";
  return type == ExprType::i32 ? "int" : "bool";
}

std::string constant_text(const expr::Node& node, expr::Precision reals) {
  if (node.type == ExprType::f32) {
    return reals == expr::Precision::f64 ? literal(node.f32()) : literal(static_cast<float>(node.f32()));
  }
  if (node.type == ExprType::i32) return literal(node.i32());
  return node.boolean() ? "true" : "false";
}

std::string leaf_text(expr::Leaf leaf) {
  using expr::Leaf;
  switch (leaf) {
    case Leaf::q_token:  // the position without q_start
      return "ops::sub(q_idx, mod.q_start)";
    case Leaf::kv_token:
      return "kv_idx";
    case Leaf::q_len:
    case Leaf::kv_len:
    case Leaf::q_start:
      return fmt::format("mod.{}", expr::name(leaf));
    case Leaf::kv_start:
      throw Error(ErrorCode::internal, "kernels know no kv_start; the planner writes it as a value of the mods");
    default:
      return std::string(expr::name(leaf));
  }
}

std::string param_text(const ModLayout& layout, const expr::Node& node) {
  const auto at = std::find(layout.params.begin(), layout.params.end(), std::pair(node.param().name, node.type));
  if (at == layout.params.end()) missing(node.param().name);
  const auto word = at - layout.params.begin();
  if (node.type == ExprType::f32 && layout.reals == expr::Precision::f64) {
    return fmt::format("ops::f64_param(mod.params[{0}], mod.upper_params[{0}])", word);
  }
  return fmt::format("ops::{}_param(mod.params[{}])", node.type == ExprType::boolean ? "boolean" : name(node.type),
                     word);
}

std::size_t capture_slot(const ModLayout& layout, const expr::CaptureDecl& capture) {
  const auto at = std::find(layout.captures.begin(), layout.captures.end(),
                            ModLayout::CaptureSlot{capture.name, capture.dtype, capture.rank});
  if (at == layout.captures.end()) missing(capture.name);
  return static_cast<std::size_t>(at - layout.captures.begin());
}

std::string wrapped(std::string line) {
  const std::size_t width = 120;
  for (std::size_t begin = 0; line.size() - begin > width;) {
    std::size_t comma = line.rfind(", ", begin + width - 1);
    if (comma == std::string::npos || comma < begin) comma = line.find(", ", begin + width);
    if (comma == std::string::npos) break;  // nothing to break it at
    line.replace(comma, 2, ",\n    ");
    begin = comma + 2;
  }
  return line;
}

}  // namespace heddle::device_text
