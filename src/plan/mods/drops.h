// A weight_mod that keeps an element or drops it, by a draw: dropout in any spelling.
#pragma once

#include <optional>

#include "heddle/expr.h"

namespace heddle::plan {

/// weight = where(random_uniform(seed, b, h, q_idx, kv_idx) is on that side of the threshold, kept, 0). All three
/// depend on b, h, params and lengths alone.
struct Drops {
  Expr seed;  // i32
  /// i32, exact: a draw is k / 2^15, and kept are k >= threshold; or, where it is negative, k < -1 - threshold.
  Expr threshold;
  Expr kept;  // f32
};

/// Recognises a simplified weight_mod that drops elements; empty if it does something else or keeps a constant that is
/// not finite.
std::optional<Drops> drops_of(const Expr& weight);

}  // namespace heddle::plan
