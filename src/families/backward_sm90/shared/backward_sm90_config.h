// backward_sm90's configuration: the work of one of its kernels, and how it is done; behind it the shared memory, which
// follows from the configuration alone. Read by the planner, by the launcher, and by the kernels themselves when NVRTC
// compiles them: no headers but these, plain integers only.
//
// A tile is 64 * warpgroups keys of one head, and a CTA computes one, or one after the other: K and V stay in shared
// memory, dK and dV in the registers of the consumers, 64 keys each. A step is 64 queries of one query head. One thread
// of the producer warpgroup loads Q, dO and the rows' numbers; another draws tiles; two warps add finished parts of dQ
// to memory. The consumers compute dQ, or a warpgroup of its own does (d_q_apart).
#pragma once

#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "shared/backward_rows.h"
#include "shared/mod_forms.h"
#include "shared/panels.h"
#include "shared/storage.h"
#include "shared/tile_shape.h"

namespace heddle::shared {

inline constexpr int kStepQueries = 64;
inline constexpr int kScratchRow = 65;
inline constexpr int kDsBuffers = 2;    // steps whose dS stands in shared memory
inline constexpr int kDqBuffers = 2;    // parts of dQ that do, each with a thread that adds it: of a step, or of two
inline constexpr int kTileBuffers = 2;  // tiles whose records do, where CTAs draw tiles
// Registers a thread of a kernel of four warpgroups after they have traded theirs: 512 in all, as ForwardSm90Config
// says.
inline constexpr int kOneOfFourRegisters = 208, kQueryRegisters = 72, kProducerRegisters = 24;

struct BackwardSm90Config {
#define HEDDLE_FIELD(type, name, value) type name = value;
#include "families/backward_sm90/shared/backward_sm90_config.def"
#undef HEDDLE_FIELD

  /// The shape of tiles for KeyRows: keys in the place of queries.
  constexpr TileShape tile() const { return {warpgroups, kStepQueries}; }
  constexpr int keys() const { return kWarpgroupRows * warpgroups; }
  /// Keys of a CTA: rows that TMA brings at once.
  constexpr int cta_keys() const { return wide ? kWarpgroupRows : keys(); }
  constexpr int tile_ctas() const { return wide ? warpgroups : 1; }
  constexpr int threads() const { return wide || d_q_apart ? 512 : 128 * (warpgroups + 1); }
  // Panels of 64 columns: of the tensors, and of the products. What the tensors lack stays zero.
  constexpr int panels() const { return columns / kPanelColumns; }
  constexpr int qk_panels() const { return (qk_dim + kPanelColumns - 1) / kPanelColumns; }
  constexpr int v_panels() const { return (v_dim + kPanelColumns - 1) / kPanelColumns; }
  /// Panels of a buffer of dO, of a wide kernel.
  constexpr int d_o_panels() const { return d_o_halves ? 2 : v_panels(); }
  constexpr int d_o_slots() const { return d_o_halves ? 2 : 1; }  // buffers of a step's dO
  /// A step's dQ is 64 queries x columns. Each warpgroup that computes it stores a part of d_q_columns() columns.
  constexpr int d_q_parts() const { return d_q_apart ? 1 : warpgroups; }
  constexpr int d_q_columns() const { return columns / d_q_parts(); }
  constexpr int d_q_part_floats() const { return kWarpgroupRows * d_q_columns(); }
  /// Somebody has time to convert the sums of dQ's ring. Consumers that draw tiles have none, since keys come early.
  constexpr bool has_converters() const { return d_q_apart || !draws(); }
  /// The warpgroup for dQ converts the ring's sums; where there is none, the consumers do.
  constexpr bool queries_convert() const { return ring && d_q_apart; }
  constexpr bool consumers_convert() const { return ring && !d_q_apart; }
  /// CTAs draw tiles; else each computes one. With 128 columns the loop around a tile leaves the compiler too few
  /// registers to keep products in flight (C7512).
  constexpr bool draws() const { return columns == 64 && d_q && !reads && !wide; }
  /// Tiles whose records stand in shared memory.
  constexpr int tile_buffers() const { return draws() ? kTileBuffers : 1; }
  /// The pass of reads: what a warpgroup's threads show each other, in floats. Odd rows keep diagonals in banks of
  /// their own.
  constexpr int scratch_floats() const { return diagonals ? 64 * kScratchRow : row_sums ? 4 * 64 : 0; }
  /// Tiles whose K and V stand in shared memory. With two, each has the number of its tile's record.
  constexpr int kv_buffers() const { return d_q_apart ? kTileBuffers : 1; }
  // Registers a thread after the warpgroups have traded theirs: see ForwardSm90Config.
  constexpr int consumer_registers() const { return d_q_apart ? kOneOfFourRegisters : 240; }
  /// Columns of dK and of dV in registers, at most.
  constexpr int gradient_columns() const {
    return wide ? kPanelColumns * (qk_panels() > v_panels() ? qk_panels() : v_panels()) : columns;
  }
  // A place for the sums of a tile's share, in floats, and the counters beside it.
  constexpr int share_floats() const { return warpgroups * 2 * kWarpgroupRows * gradient_columns(); }
  constexpr int share_counters() const { return warpgroups * 2 * 4; }
  constexpr bool operator==(const BackwardSm90Config&) const = default;
};

/// Offsets in bytes in dynamic shared memory, which begins at a multiple of 1024, where the swizzle repeats. Tensors
/// stand in panels of 64 columns, rows of 128 bytes.
struct BackwardSm90Memory {
  int k, v;      // [kv_buffers][panels][keys]
  int q;         // [q_stages][panels][64]
  int d_o;       // [d_o_stages][panels][64]
  int d_s;       // [kDsBuffers][warpgroups][64 queries][64 keys]
  int d_q;       // [kDqBuffers] parts, as backward_rows.h says
  int zeros;     // queries_convert(): a part of dQ
  int scratch;   // [warpgroups][scratch_floats()]
  int rows;      // [q_stages] numbers of 64 queries
  int tile;      // BackwardTile [tile_buffers()]
  int turn;      // DqTurn [tile_buffers()]
  int steps;     // BackwardStep [q_stages]
  int barriers;  // 8 bytes each: k full, v full [kv_buffers], both empty; q full, empty [q_stages]; dO full, empty
                 // [d_o_stages]; dS full [kDsBuffers]; dQ full, empty [kDqBuffers]; tile full, empty [tile_buffers()];
                 // d_q_apart: dS empty [kDsBuffers]; draws(): loaded; ring: converted
  int bytes;     // to ask for
};

constexpr int tensor_bytes(const BackwardSm90Config& config, int rows) { return config.panels() * rows * 128; }

constexpr int backward_barriers(const BackwardSm90Config& config) {
  return 2 * config.kv_buffers() + 1 + 2 * config.q_stages + 2 * config.d_o_stages + kDsBuffers + 2 * kDqBuffers +
         2 * config.tile_buffers() + (config.d_q_apart ? kDsBuffers : 0) + (config.draws() ? 1 : 0) +
         (config.ring ? 1 : 0);
}

constexpr BackwardSm90Memory backward_sm90_memory(const BackwardSm90Config& config) {
  BackwardSm90Memory memory{};
  int at = 0;
  const auto reserve = [&](int bytes) {
    const int offset = at;
    at += bytes;
    return offset;
  };
  memory.k = reserve(config.kv_buffers() * tensor_bytes(config, config.keys()));
  memory.v = reserve(config.kv_buffers() * tensor_bytes(config, config.keys()));
  memory.q = reserve(config.q_stages * tensor_bytes(config, kStepQueries));
  memory.d_o = reserve(config.d_o_stages * tensor_bytes(config, kStepQueries));
  memory.d_s = reserve(config.d_q ? kDsBuffers * config.warpgroups * kStepQueries * 128 : 0);
  memory.d_q = reserve(config.d_q ? kDqBuffers * 4 * config.d_q_part_floats() : 0);
  memory.zeros = reserve(config.queries_convert() ? kPartBytes : 0);
  memory.scratch = reserve(config.warpgroups * 4 * config.scratch_floats());
  memory.rows = reserve(config.q_stages * block_bytes(config.lse_rest));
  memory.tile = reserve(config.tile_buffers() * static_cast<int>(sizeof(BackwardTile)));
  memory.turn = reserve(config.ring ? config.tile_buffers() * static_cast<int>(sizeof(DqTurn)) : 0);
  memory.steps = reserve(config.q_stages * static_cast<int>(sizeof(BackwardStep)));
  memory.barriers = reserve(8 * backward_barriers(config));
  memory.bytes = at;
  return memory;
}

}  // namespace heddle::shared
