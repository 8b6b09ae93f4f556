// backward_sm90's shared memory: where each buffer and barrier of a CTA is, from the configuration alone. Read by the
// planner, by the launcher, and by the kernel itself when NVRTC compiles it: no headers but these, plain integers only.
#pragma once

#include "shared/backward_rows.h"
#include "shared/backward_sm90.h"
#include "shared/backward_sm90_config.h"

namespace heddle::shared {

/// Offsets in bytes in dynamic shared memory, which begins at a multiple of 1024, where the swizzle repeats. Tensors
/// stand in panels of 64 columns, rows of 128 bytes.
struct BackwardSm90Memory {
  int k, v;      // [panels][keys]
  int q;         // [q_stages][panels][64]
  int d_o;       // [d_o_stages][panels][64]
  int d_s;       // [kDsBuffers][warpgroups][64 queries][64 keys]
  int d_q;       // [warpgroups] parts, as backward_rows.h says
  int scratch;   // [warpgroups][scratch_floats()]
  int rows;      // [q_stages] numbers of 64 queries
  int tile;      // BackwardTile [kTileBuffers]
  int steps;     // BackwardStep [q_stages]
  int barriers;  // 8 bytes each: k full, v full, both empty; q full, empty [q_stages]; dO full, empty [d_o_stages];
                 // dS full [kDsBuffers]; dQ full, empty [warpgroups]; tile full, empty [kTileBuffers]
  int bytes;     // to ask for
};

constexpr int tensor_bytes(const BackwardSm90Config& config, int rows) { return config.panels() * rows * 128; }

constexpr int backward_barriers(const BackwardSm90Config& config) {
  return 3 + 2 * config.q_stages + 2 * config.d_o_stages + kDsBuffers + 2 * config.warpgroups + 2 * kTileBuffers;
}

constexpr BackwardSm90Memory backward_sm90_memory(const BackwardSm90Config& config) {
  BackwardSm90Memory memory{};
  int at = 0;
  const auto place = [&](int bytes) {
    const int offset = at;
    at += bytes;
    return offset;
  };
  memory.k = place(tensor_bytes(config, config.keys()));
  memory.v = place(tensor_bytes(config, config.keys()));
  memory.q = place(config.q_stages * tensor_bytes(config, kStepQueries));
  memory.d_o = place(config.d_o_stages * tensor_bytes(config, kStepQueries));
  memory.d_s = place(config.d_q ? kDsBuffers * config.warpgroups * kStepQueries * 128 : 0);
  memory.d_q = place(config.d_q ? config.warpgroups * 4 * config.d_q_part_floats() : 0);
  memory.scratch = place(config.warpgroups * 4 * config.scratch_floats());
  memory.rows = place(config.q_stages * block_bytes(config.lse_rest));
  memory.tile = place(kTileBuffers * static_cast<int>(sizeof(BackwardTile)));
  memory.steps = place(config.q_stages * static_cast<int>(sizeof(BackwardStep)));
  memory.barriers = place(8 * backward_barriers(config));
  memory.bytes = at;
  return memory;
}

}  // namespace heddle::shared
