// A backward's tiles of keys in bricks, and its steps by AMX.
#pragma once

#include <cstdint>

#include "families/cpu/cpu_backward_run.h"
#include "families/cpu/cpu_backward_step.h"

namespace heddle::cpu {

/// A worker's memory of a tile of keys; without bricks it is empty, and nothing below is called.
BrickOperands brick_keys(const BackwardRun& run, int worker);

/// The first `keys` rows become the tile's, and the gradients 0. flags: of each kPanel keys.
void pack_brick_keys(const BackwardRun& run, const ConstRows& from, std::int64_t keys, const BrickOperands& tile,
                     std::uint8_t* flags);
void pack_brick_values(const BackwardRun& run, const ConstRows& from, std::int64_t keys, const BrickOperands& tile);

void run_brick_step(const BackwardRun& run, const BackwardStep<float>& step, const QueryMemory& queries,
                    std::int64_t piece, const BrickOperands& tile, const StepBuffers<float>& buffers, int worker);

}  // namespace heddle::cpu
