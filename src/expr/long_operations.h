// Which operations take long. Whoever decides how often something is computed asks this.
#pragma once

#include "expr/node.h"

namespace heddle::expr {

/// k for an i32 constant of 2^k; else -1.
int power_of_two(const Node& node);

/// Ten instructions or more, or a wait for memory. Divisions by a power of two are shifts.
bool is_long(const Node& node);

}  // namespace heddle::expr
