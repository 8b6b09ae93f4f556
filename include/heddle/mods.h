// Ready-made mods, each a few lines over expr.h. Masks are boolean: true attends. Combine them with &, | and !.
// Arguments that make no sense (a negative radius, a capture of the wrong rank) throw invalid_argument.
#pragma once

#include <cstdint>

#include "heddle/expr.h"

namespace heddle::mods {

/// kv_idx <= q_idx: the upper-left corner is the origin.
Expr causal();
/// The last query sees the last key of its sequence.
Expr causal_lower_right();
/// q_idx - before <= kv_idx <= q_idx + after.
Expr sliding_window(std::int64_t before, std::int64_t after = 0);
/// Every step-th key back from the query's own, no farther than `before`.
Expr dilated_window(std::int64_t before, std::int64_t step);
/// Causal, and every query also sees the first `prefix` keys.
Expr prefix_lm(std::int64_t prefix);
/// prefix_lm with a length that is an i32 expression: lengths[b], say.
Expr prefix_lm(const Expr& prefix);
/// The first `global` tokens see all tokens and are seen by all. Between the other tokens |q_idx - kv_idx| <= window.
Expr global_and_window(std::int64_t global, std::int64_t window);
/// Documents by id: `ids` i32 or i64 [S], or [B, S]. Queries and keys see their own document only.
Expr documents(const Capture& ids);
/// Documents by offsets: `start_of` i32 or i64 [S] holds, for each token, where its document starts (document_starts
/// makes it from offsets).
Expr documents_from_starts(const Capture& start_of);
/// From offsets [N+1] (0 = first <= ... <= last = S) the i32 tensor [S] of each token's document start. Throws
/// invalid_argument for other offsets.
Tensor document_starts(const ConstTensorView& offsets);
/// Tokens of an image, row-major, `width` a row: no farther than radius_y rows and radius_x columns.
Expr neighbourhood_2d(std::int64_t width, std::int64_t radius_y, std::int64_t radius_x);
/// Speculative decoding: a draft token sees its ancestors, itself, and all keys before position `first`, where the
/// draft starts. Positions are q_idx and kv_idx: if the queries are the draft alone, give q_start = first. "kv is an
/// ancestor of q" is enter[kv] <= enter[q] <= last[kv], without a loop. tree_intervals makes enter and last, i32
/// [draft].
Expr tree(const Capture& enter, const Capture& last, const Expr& first = 0);
struct TreeIntervals {
  Tensor enter;  // i32 [S]: when a depth-first walk enters the token
  Tensor last;   // i32 [S]: when it enters the token's last descendant
};
/// `parents` i32 or i64 [S], -1 for a root. Throws invalid_argument for a cycle or a parent out of range.
TreeIntervals tree_intervals(const ConstTensorView& parents);
/// Blocks in order: all of one's own block and everything before it.
Expr block_diffusion(std::int64_t block);

/// score + slopes[h] * (kv_idx - q_idx).
Expr alibi(const Capture& slopes);
/// f32 [heads]: 2^(-8 (h+1) / heads) if `heads` is a power of two; otherwise what the paper's code gives.
Tensor alibi_slopes(std::int64_t heads);
/// score + table[h, clip(kv_idx - q_idx, -max_distance, max_distance) + max_distance], table [H, 2 max_distance + 1].
Expr relative_bias(const Capture& table, std::int64_t max_distance);
/// T5's buckets of distances, exact near and logarithmic far: score + table[bucket, h], table [buckets, H].
Expr t5_bias(const Capture& table, std::int64_t buckets, std::int64_t max_distance, bool bidirectional);
/// cap * tanh(score / cap).
Expr softcap(double cap);
/// A weight_mod: 0 with probability p, else 1 / (1 - p).
Expr dropout(double p, const Expr& seed);

}  // namespace heddle::mods
