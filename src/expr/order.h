// A fixed order of nodes, for the operands of commutative operations.
#pragma once

#include "expr/node.h"

namespace heddle::expr {

/// An order by content alone, so every process has it: constants last, then the shallow before the deep.
bool stands_before(const Node& x, const Node& y);

}  // namespace heddle::expr
