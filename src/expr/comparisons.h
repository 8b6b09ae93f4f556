// How comparisons relate: turned around, and each other's negation.
#pragma once

#include "expr/node.h"

namespace heddle::expr {

inline bool is_comparison(Op op) { return info(op).kind == Kind::cmp; }
/// x op y is y mirrored(op) x.
Op mirrored(Op comparison);
/// not (x op y) is x complement(op) y, where no operand is NaN; eq and ne: always.
Op complement(Op comparison);
/// not (comparison) may be written with complement().
bool has_complement(const Node& comparison);

/// Two booleans of which always exactly one is true, as far as their spelling shows.
bool opposite(const Node& x, const Node& y);

}  // namespace heddle::expr
