// Rewrites that never change a value: constant folding, identities, canonical order. Every rule holds bit for bit for
// all inputs, NaN, infinities, negative zeros and wrapping integers included; a rule that does not is not here.
#pragma once

#include <optional>

#include "expr/interpret.h"
#include "expr/ranges.h"

namespace heddle::expr {

/// Constants are folded in the precision in which the expression will run. The result has no more nodes, and is its own
/// simplification.
Expr simplify(const Expr& e, Precision precision);

/// t = scale * score + offset, with `scale` a constant and `offset` free of score.
struct LinearInScore {
  double scale;
  Expr offset;  // empty: zero
};
/// The linear form of a score mod, when it has one with a scale other than zero; empty otherwise. Folding it rounds
/// otherwise than the mod as written does.
std::optional<LinearInScore> linear_in_score(const Expr& score_mod);

/// Growth of a real expression from one key to the next: g, without kv_idx, kv_token and score, so that e(kv_idx + n) =
/// e(kv_idx) + n * g up to rounding, while the leaves stay inside `leaves`. Empty if the expression is not linear
/// there, or if one of its integers may exceed what f32 holds exactly. Zero for an expression that reads no key.
std::optional<Expr> slope_over_keys(const Expr& e, const LeafRanges& leaves);

/// A term that depends on b, h and kv_idx - q_idx alone: it is the same at all distances from `from` on, and at all up
/// to `to`, of those that the leaves' ranges allow. Past their ends where it never is.
struct TermOfDistance {
  std::int64_t from, to;
  std::int64_t repeats_to;  // the term repeats every kDistancePeriod keys up to this distance
};
/// Divides the keys of every tile. So a term that repeats with this period is the same in the next block of keys.
inline constexpr int kDistancePeriod = 16;
/// Empty when it depends on more, or on no key.
std::optional<TermOfDistance> term_of_distance(const Expr& e, const LeafRanges& leaves);

/// A comparison that says no more than that kv_idx - q_idx is at least, or at most, an i32 of b, h and params.
struct BoundOfDistance {
  Expr value;
  bool is_most;
};
/// Empty when it says something else.
std::optional<BoundOfDistance> bound_of_distance(const Expr& e, const LeafRanges& leaves);

}  // namespace heddle::expr
