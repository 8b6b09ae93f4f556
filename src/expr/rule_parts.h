// Shared by the files of rules: reading nodes, and making nodes from operands that fit.
#pragma once

#include <array>
#include <cstdint>

#include "expr/node.h"

namespace heddle::expr {

inline const Node& first(const Node& node) { return *node.operands[0]; }
inline const Node& second(const Node& node) { return *node.operands[1]; }
inline Expr handle(const Node& node, std::size_t operand) { return Expr(node.operands[operand]); }
inline bool same_operands(const Node& node) { return node.operands[0] == node.operands[1]; }
inline bool is_constant(const Node& node) { return node.op == Op::constant; }

inline bool is_i32(const Node& node) { return node.type == ExprType::i32; }
inline bool is_i32(const Node& node, std::int32_t value) {
  return is_constant(node) && is_i32(node) && node.i32() == value;
}
inline bool is_boolean(const Node& node, bool value) {
  return is_constant(node) && node.type == ExprType::boolean && node.boolean() == value;
}

inline Expr node(Op op, const Expr& x) { return make(op, x.type(), std::array{x}); }
inline Expr node(Op op, const Expr& x, const Expr& y) { return make(op, x.type(), std::array{x, y}); }

/// A value for Rule::may_grow.
inline constexpr bool kMayGrow = true;

}  // namespace heddle::expr
