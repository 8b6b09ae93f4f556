// The CPU backward family: how its work is cut, and every byte that it needs. Numbers count elements of the type it
// computes in (f32, or f64 for f64 problems) unless they say bytes.
//
// A task walks tiles of keys, and for each tile all queries that attend it: dk and dv of a tile stay in the task, and
// dq is added up in a buffer of the task's own. So each product is computed once (5 of them), and each sum has a fixed
// order, whatever the number of threads.
//
//   unit    the queries and keys that one task cannot share with another: a sequence and a kv head; all sequences where
//           k or v broadcasts over the batch, or where a capture's gradient asks for it
//   piece   a range of a unit's tiles of keys. There are more than one if there are few units. Each has its dq; they
//           are added in order
//   lane    tasks that run one after the other, since they share copies of captures' gradients
//   wave    units whose packed queries and dq are in the workspace at one time
#pragma once

#include <cstdint>

#include "families/cpu/cpu_backward_split.h"
#include "families/cpu/cpu_forward_plans.h"
#include "plan/plan.h"

namespace heddle::plan {

/// A row of scores, in elements. Not a power of two: products read columns of scores.
inline constexpr std::int64_t kScoreStride = kBackwardKeys + 16;
inline constexpr std::int64_t kDerivativeStride = kWideBackwardKeys + 32;  // of dS in bf16: whole lines of the cache
/// A row of gradients of keys that stand transposed, for tiles of so many keys.
constexpr std::int64_t gradient_stride(std::int64_t tile_keys) { return tile_keys + 16; }
/// Where an element of a step stands in buffers of `rows` rows: those of each kBackwardKeys columns follow each other.
constexpr std::int64_t step_element(std::int64_t rows, std::int64_t row, std::int64_t column) {
  return (column / kBackwardKeys * rows + row) * kScoreStride + column % kBackwardKeys;
}

/// Offsets in bytes of a worker's buffers; cpu_backward_step.h says what is in them.
struct CpuBackwardScratch {
  std::int64_t k_columns, v_columns, k_rows, dk, dv;
  std::int64_t scores, slopes, weights, d_p, factors, attending, finite, special;
  std::int64_t score_copy;         // as attending; 0 bytes unless an index of a read depends on the score
  std::int64_t reads, read_bytes;  // of each read that gets a gradient, as attending
  std::int64_t indices, offsets;   // i32 [rows][kScoreStride], i64 [rows][kBackwardKeys]
  std::int64_t staging;            // [kPanel][kPanel]; a row of panels; two rows of o in f64
  // With bricks (BrickOperands and BrickBuffers say what is in them), else 0 bytes. Of scores, slopes, weights and d_p
  // there are kUnitRows rows then, and no k_columns and v_columns.
  std::int64_t k_bricks, v_bricks, k_row_bricks, dk_columns, dv_columns;
  std::int64_t weight_bricks, d_s_bricks, d_s_rows, finite_bricks;
  std::int64_t bytes;
};
CpuBackwardScratch cpu_backward_scratch(const problem::AttentionProblem& problem, const CpuBackwardSplit& split);

/// Offsets in bytes of what the workspace holds of one sequence and query head.
struct CpuBackwardQueries {
  bool bricks;                          // q and d_o are those of TwoWayRows instead
  std::int64_t rows;                    // of panels: q_len; with bricks up to kUnitRows
  std::int64_t q, d_o;                  // panels
  std::int64_t q_columns, d_o_columns;  // with bricks
  std::int64_t dq, part_bytes;          // panels of each piece
  std::int64_t lse, delta;              // [q_len]
  std::int64_t lse_rest;                // [q_len] if the problem has it, else 0 bytes
  std::int64_t q_flags, d_o_flags;      // a byte for each kPanel rows: one of them is not finite
  std::int64_t bytes;
};
CpuBackwardQueries cpu_backward_queries(const problem::AttentionProblem& problem, const CpuBackwardSplit& split,
                                        std::int64_t q_len);

/// Sequences and kv heads that one unit takes.
std::int64_t cpu_backward_unit_sequences(const problem::AttentionProblem& problem, const CpuBackwardSplit& split);
std::int64_t cpu_backward_unit_heads(const problem::AttentionProblem& problem, const CpuBackwardSplit& split);

/// The workspace in front of the waves' part: f64 copies of gradients of lanes, then gradients of tasks.
std::int64_t cpu_backward_lane_bytes(const CpuBackwardSplit& split);  // of one lane
std::int64_t cpu_backward_owned_bytes(const problem::AttentionProblem& problem, const CpuBackwardSplit& split);
/// The waves' part: everything if that is at most 512 MiB or q broadcasts over the batch; else the bytes of the
/// largest unit, and at least 512 MiB.
std::int64_t cpu_backward_wave_bytes(const problem::AttentionProblem& problem, const CpuBackwardSplit& split);

/// The family's plan. It depends on the problem and the machine, not on the number of threads.
Plan cpu_backward(const Request& request);
/// With other tiles of queries.
std::vector<Plan> cpu_backward_variants(const Request& request);
Prediction cpu_backward_prediction(const problem::AttentionProblem& problem, const Plan& plan,
                                   const BlockMask* block_mask, const device::Caps& caps);

}  // namespace heddle::plan
