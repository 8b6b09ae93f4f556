// Positions by granules: q, k and v hold rows of a longer sequence, whole granules of it in any order, as context
// parallelism leaves them. Mods then read a position as
//
//   of_granule[q_idx // 128] * 128 + q_idx % 128
//
// and kv_idx likewise, maybe clipped. Neighbours inside of a granule are neighbours in the sequence, so kernels whose
// tiles lie inside of granules look up one position a tile, and their mods read q_idx and kv_idx as positions, in every
// form that these have.
#pragma once

#include <string>

#include "expr/ranges.h"
#include "heddle/expr.h"
#include "problem/problem.h"

namespace heddle::plan {

struct Places {
  /// The position of a row, of q_idx alone and of kv_idx alone; it may read b. Empty: a row's index is its position, or
  /// mods find positions otherwise.
  Expr query, key;
  int query_rows = 0, key_rows = 0;  // of a granule: multiples of kPlacedRows

  bool any() const { return !query.empty() || !key.empty(); }
};
inline constexpr int kPlacedRows = 64;

/// The places in a problem's mods, side by side: all that reads q_idx in them is one such position, and no q_start
/// moves it; kv_idx likewise.
Places places_of(const problem::AttentionProblem& problem);

/// The problem's mods with q_idx and kv_idx in place of positions by granules.
problem::AttentionProblem at_places(const problem::AttentionProblem& problem, const Places& places);
/// The leaves' ranges with those of positions for q_idx and kv_idx.
expr::LeafRanges at_places(expr::LeafRanges leaves, const Places& places);

/// "queries by granules of 128 rows, keys by granules of 128 rows"; empty without places.
std::string describe_places(const Places& places);

}  // namespace heddle::plan
