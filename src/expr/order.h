// A fixed order of nodes, for the operands of commutative operations.
#pragma once

#include "expr/node.h"

namespace heddle::expr {

/// The same in every process, for it looks at content only: constants last, then the shallow before the deep.
bool stands_before(const Node& x, const Node& y);

}  // namespace heddle::expr
