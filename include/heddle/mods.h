// Ready-made mods, each a few lines over expr.h. Masks are boolean: true attends. Combine them with &, | and !.
// Arguments that make no sense (a negative radius, a capture of the wrong rank) throw invalid_argument.
#pragma once

#include <cstdint>
#include <optional>

#include "heddle/expr.h"

namespace heddle::mods {

/// kv_idx <= q_idx: the upper-left corner is the origin.
Expr causal();
/// Causal, with the last query aligned to the last key of its sequence.
Expr causal_lower_right();
/// q_idx - before <= kv_idx <= q_idx + after.
Expr sliding_window(std::int64_t before, std::int64_t after = 0);
/// Every step-th key, counted back from the query's own, at most `before` keys back.
Expr dilated_window(std::int64_t before, std::int64_t step);
/// Causal, and every query also sees the first `prefix` keys.
Expr prefix_lm(std::int64_t prefix);
/// prefix_lm with a length that is an i32 expression: lengths[b], say.
Expr prefix_lm(const Expr& prefix);
/// The first `global` tokens see all tokens and are seen by all. Between the other tokens |q_idx - kv_idx| <= window.
Expr global_and_window(std::int64_t global, std::int64_t window);
/// Causal over the last `before` keys, and every query also sees the first `sinks` keys: a stream with attention sinks.
Expr sinks_and_window(std::int64_t sinks, std::int64_t before);
/// Causal, each head over its own number of keys before the query: `before` i32 or i64 [Hq].
Expr windows_by_head(const Capture& before);
/// Causal within chunks of `chunk` tokens: 0 to chunk - 1, chunk to 2 chunk - 1, and so on.
Expr causal_chunks(std::int64_t chunk);
/// Documents by id: `ids` i32 or i64 [S], or [B, S]. Queries and keys see their own document only.
Expr documents(const Capture& ids);
/// Documents by offsets: `start_of` i32 or i64 [S] holds, for each token, where its document starts (document_starts
/// makes it from offsets).
Expr documents_from_starts(const Capture& start_of);
/// From offsets [N+1] (0 = first <= ... <= last = S) the i32 tensor [S] of each token's document start, S up to 2^28
/// (1 GiB). Throws invalid_argument for other offsets.
Tensor document_starts(const ConstTensorView& offsets);
/// A neighbourhood in an image, row-major, `width` tokens per row: keys at most radius_y rows and radius_x columns
/// away.
Expr neighbourhood_2d(std::int64_t width, std::int64_t radius_y, std::int64_t radius_x);
/// Neighbourhood attention (NATTEN) in an image: each query sees kernel_y rows and kernel_x columns, centred on itself.
/// At the border the window is shifted inside and keeps its size. Kernels are odd, and at most the extents.
Expr natten_2d(std::int64_t height, std::int64_t width, std::int64_t kernel_y, std::int64_t kernel_x);
/// natten_2d in `depth` images of height x width.
Expr natten_3d(std::int64_t depth, std::int64_t height, std::int64_t width, std::int64_t kernel_z,
               std::int64_t kernel_y, std::int64_t kernel_x);
/// Sliding tile attention: tokens are stored tile by tile, `tile` tokens in each, the tiles row-major. The tiles see
/// each other as natten_2d's tokens do, so every block of `tile` queries and keys is full or empty.
Expr sliding_tiles_2d(std::int64_t tiles_y, std::int64_t tiles_x, std::int64_t tile, std::int64_t kernel_y,
                      std::int64_t kernel_x);
Expr sliding_tiles_3d(std::int64_t tiles_z, std::int64_t tiles_y, std::int64_t tiles_x, std::int64_t tile,
                      std::int64_t kernel_z, std::int64_t kernel_y, std::int64_t kernel_x);
/// Swin's windows of an image, row-major, `width` a row: queries and keys see their own window x window tokens. The
/// windows begin `shift` tokens above and left of the multiples of `window`, shift < window. As in Swin, tokens of
/// opposite borders do not see each other.
Expr swin_windows(std::int64_t width, std::int64_t window, std::int64_t shift = 0);
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
/// A query sees its whole own block and all keys before it.
Expr block_diffusion(std::int64_t block);
/// Training of block diffusion: `length` noisy tokens, then the same ones clean. Noisy tokens see their own block and
/// the clean tokens of earlier blocks; clean ones see the clean tokens of their own and of earlier blocks.
Expr block_diffusion_training(std::int64_t length, std::int64_t block);

/// score + slopes[h] * (kv_idx - q_idx).
Expr alibi(const Capture& slopes);
/// f32 [heads], up to 65536: 2^(-8 (h+1) / heads) if `heads` is a power of two; otherwise what the paper's code gives.
Tensor alibi_slopes(std::int64_t heads);
/// score + table[h, clip(kv_idx - q_idx, -max_distance, max_distance) + max_distance], table [H, 2 max_distance + 1].
Expr relative_bias(const Capture& table, std::int64_t max_distance);
/// T5's buckets of distances, exact near and logarithmic far: score + table[bucket, h], table [buckets, H].
Expr t5_bias(const Capture& table, std::int64_t buckets, std::int64_t max_distance, bool bidirectional);
/// Swin's bias by offset: score + table[(dy + window - 1) * (2 window - 1) + dx + window - 1, h], where dy and dx are
/// the rows and columns from the key to the query, clipped to window - 1. table [(2 window - 1)^2, H].
Expr swin_bias(const Capture& table, std::int64_t width, std::int64_t window);
/// Graphormer's bias by distance in a graph: score + table[clip(distances[q_idx, kv_idx], 0, largest), h]. distances
/// [S, S] or [B, S, S] of integers, table [largest + 1, H].
Expr graph_bias(const Capture& distances, const Capture& table, std::int64_t largest);
/// cap * tanh(score / cap).
Expr softcap(double cap);
/// A weight_mod: 0 with probability p, else 1 / (1 - p).
Expr dropout(double p, const Expr& seed);

/// Expressions that replace a mod's leaves. Leaves that are not given stay.
struct Arguments {
  std::optional<Expr> score = {}, b = {}, h = {}, q_idx = {}, kv_idx = {};
};
/// A mod with other arguments: with_arguments(softcap(30), {.score = alibi(slopes)}) caps the biased score, and
/// with_arguments(causal(), {.kv_idx = leaf::kv_idx() - 4}) shifts the diagonal. The score is f32 (an i32 is
/// converted), indices are i32; throws invalid_argument for other types, naming the argument.
Expr with_arguments(const Expr& mod, const Arguments& arguments);

/// Adapts a mod of a whole sequence to tensors that hold parts of it: whole granules of `rows` rows, in any order. Row
/// i of q is at position clip(q_granules[i // rows], 0, (longest - 1) // rows) * rows + i % rows, which takes the place
/// of q_idx; kv_granules says the same of keys. Both i32 or i64 [granules], with a granule for each `rows` rows, the
/// last one maybe shorter. `longest`: of the whole sequence, at most 2^28; kernels are compiled for it, so a power of
/// two serves many.
///
/// With rows a multiple of 128, Hopper's kernels look up a position once per tile, and compute the mods as for
/// contiguous rows; with a multiple of 64, forward_mma and backward_mma look up one per step (explain() says
/// "positions"). Kernels for few queries and the CPU look up each row and key.
Expr by_granules(const Expr& mod, const Capture& q_granules, const Capture& kv_granules, std::int64_t rows = 128,
                 std::int64_t longest = 1 << 23);

}  // namespace heddle::mods
