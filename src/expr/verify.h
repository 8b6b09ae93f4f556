// Type rules. The public operators promote operands so that every node obeys them; verify() proves it, before and after
// each pass.
#pragma once

#include <string>

#include "expr/node.h"

namespace heddle::expr {

/// The use of a mod: it decides the mod's type and the leaves that it may read.
enum class Role : std::uint8_t { score, mask, weight };

/// The type of an operation over these operands: `type` for a param, else decided by kind, operands and payload. Throws
/// internal if they do not fit the operation's kind.
ExprType result_type(Op op, ExprType type, std::span<const std::shared_ptr<const Node>> operands,
                     const Payload& payload);

/// Throws internal when a node breaks the rules of its operation's kind (a bug in a pass), naming the sub-expression.
void verify(const Expr& e);

/// The mod as it will be used: an i32 score or weight becomes f32. Throws invalid_argument, naming the sub-expression,
/// when the type does not fit the role (a mask must be boolean) or a leaf is not allowed (masks and weights see no
/// score).
Expr as_role(const Expr& e, Role role);

}  // namespace heddle::expr
