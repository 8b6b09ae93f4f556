#include "families/cpu/cpu_backward_bricks.h"

#include <algorithm>
#include <cstddef>

namespace heddle::cpu {
namespace {

/// A step computes whole groups of kBrickDepth keys, and no more.
void clear(const BackwardRun& run, float* columns, std::int64_t dim, std::int64_t keys) {
  const std::int64_t stride = plan::gradient_stride(run.split.tile_keys);
  for (std::int64_t row = 0; row < plan::round_up(dim, kBrickColumns); ++row) {
    std::fill_n(columns + row * stride, plan::round_up(keys, kBrickDepth), 0.0F);
  }
}

void pack_bricks(const ConstRows& from, std::int64_t keys, std::int64_t dim, std::byte* bricks, std::uint8_t* flags) {
  pack(PackBricks{.from = from, .begin = 0, .end = keys, .dim = dim, .bricks = bricks, .flags = flags});
}

}  // namespace

BrickOperands brick_keys(const BackwardRun& run, int worker) {
  if (!run.split.bricks()) return {};
  const plan::CpuBackwardScratch& scratch = run.backward.scratch;
  return {.k = run.scratch<std::byte>(worker, scratch.k_bricks),
          .v = run.scratch<std::byte>(worker, scratch.v_bricks),
          .k_rows = run.scratch<std::byte>(worker, scratch.k_row_bricks),
          .dk = run.scratch<float>(worker, scratch.dk_columns),
          .dv = run.scratch<float>(worker, scratch.dv_columns)};
}

void pack_brick_keys(const BackwardRun& run, const ConstRows& from, std::int64_t keys, const BrickOperands& tile,
                     std::uint8_t* flags) {
  pack_bricks(from, keys, run.problem.qk_dim, tile.k, nullptr);
  pack_bricks(from, keys, run.problem.qk_dim, tile.k_rows, flags);
  clear(run, tile.dk, run.problem.qk_dim, keys);
}

void pack_brick_values(const BackwardRun& run, const ConstRows& from, std::int64_t keys, const BrickOperands& tile) {
  pack_bricks(from, keys, run.problem.v_dim, tile.v, nullptr);
  clear(run, tile.dv, run.problem.v_dim, keys);
}

void run_brick_step(const BackwardRun& run, const BackwardStep<float>& step, const QueryMemory& queries,
                    std::int64_t piece, const BrickOperands& tile, const StepBuffers<float>& buffers, int worker) {
  const plan::CpuBackwardScratch& scratch = run.backward.scratch;
  BrickOperands operands = tile;
  operands.q = queries.q_rows();
  operands.d_o = queries.d_o_rows();
  operands.panel_rows = queries.at->rows;
  if (run.tensors.dq) operands.dq = queries.get<float>(queries.at->dq + piece * queries.at->part_bytes);
  if (!run.tensors.dk) operands.dk = nullptr;
  if (!run.tensors.dv) operands.dv = nullptr;
  cpu::step(step, operands, buffers,
            BrickBuffers{.weights = run.scratch<std::byte>(worker, scratch.weight_bricks),
                         .d_s = run.scratch<std::byte>(worker, scratch.d_s_bricks),
                         .d_s_rows = run.scratch<std::uint16_t>(worker, scratch.d_s_rows),
                         .finite = run.scratch<std::uint16_t>(worker, scratch.finite_bricks)},
            run.split.unit);
}

}  // namespace heddle::cpu
