// Finds a read that may leave its tensor. Each read is examined once for each set of conditions under which it is
// selected. The conditions bound linear forms, and through these the forms and atoms of the indices. If that does not
// prove an index, the index is examined again: there a where is replaced by what its branches are under its condition.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>

#include "expr/node.h"
#include "expr/ranges.h"

namespace heddle::expr {

/// The first read that is not proven inside, as a sentence; nothing if all are. `reading`: the nodes below which there
/// is a read. `terms_guard`: the terms of an `and` (`or`) guard each other.
std::optional<std::string> read_outside(const Expr& root, const LeafRanges& leaves, const CaptureBounds& bounds,
                                        Precision precision, const std::unordered_set<const Node*>& reading,
                                        bool terms_guard);

}  // namespace heddle::expr
