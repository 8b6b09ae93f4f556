// backward_sm90's configuration: the work of one of its kernels, and how it is done. Read by the planner, by the
// launcher, and by the kernels themselves when NVRTC compiles them: no headers but these, plain integers only.
//
// A tile is 64 * warpgroups keys of one head, and a CTA computes one, or one after the other: K and V stay in shared
// memory, dK and dV in the registers of the consumers, 64 keys each. A step is 64 queries of one query head. One thread
// of the producer warpgroup loads Q, dO and the rows' numbers; the other warps add finished parts of dQ to memory.
#pragma once

#include "shared/mod_forms.h"
#include "shared/panels.h"
#include "shared/storage.h"
#include "shared/tile_shape.h"

namespace heddle::shared {

inline constexpr int kStepQueries = 64;
inline constexpr int kScratchRow = 65;
inline constexpr int kDsBuffers = 2;    // steps whose dS stands in shared memory
inline constexpr int kTileBuffers = 2;  // tiles whose records do
// Registers a thread of a wide kernel after its four warpgroups have traded theirs: 512 in all, as ForwardSm90Config
// says.
inline constexpr int kWideConsumerRegisters = 208, kWideQueryRegisters = 72, kWideProducerRegisters = 24;

struct BackwardSm90Config {
#define HEDDLE_FIELD(type, name, value) type name = value;
#include "families/backward_sm90/shared/backward_sm90_config.def"
#undef HEDDLE_FIELD

  /// As KeyRows knows tiles: keys in the place of queries.
  constexpr TileShape tile() const { return {warpgroups, kStepQueries}; }
  constexpr int keys() const { return kWarpgroupRows * warpgroups; }
  /// Keys of a CTA: rows that TMA brings at once.
  constexpr int cta_keys() const { return wide ? kWarpgroupRows : keys(); }
  constexpr int tile_ctas() const { return wide ? warpgroups : 1; }
  constexpr int threads() const { return wide ? 512 : 128 * (warpgroups + 1); }
  // Panels of 64 columns: of the tensors, and of the products. What the tensors lack stays zero.
  constexpr int panels() const { return columns / kPanelColumns; }
  constexpr int qk_panels() const { return (qk_dim + kPanelColumns - 1) / kPanelColumns; }
  constexpr int v_panels() const { return (v_dim + kPanelColumns - 1) / kPanelColumns; }
  /// A step's dQ is 64 queries x columns; each warpgroup computes this many of its columns.
  constexpr int d_q_columns() const { return columns / warpgroups; }
  constexpr int d_q_part_floats() const { return kWarpgroupRows * d_q_columns(); }
  /// CTAs draw tiles; else each computes one. With 128 columns the loop around a tile leaves the compiler too few
  /// registers to keep products in flight (C7512).
  constexpr bool draws() const { return columns == 64 && d_q && !reads && !wide; }
  /// The pass of reads: what a warpgroup's threads show each other, in floats. Odd rows keep diagonals in banks of
  /// their own.
  constexpr int scratch_floats() const { return diagonals ? 64 * kScratchRow : row_sums ? 4 * 64 : 0; }
  // Registers a thread after the warpgroups have traded theirs: see ForwardSm90Config.
  constexpr int consumer_registers() const { return 240; }
  constexpr int producer_registers() const { return 24; }
  constexpr bool operator==(const BackwardSm90Config&) const = default;
};

}  // namespace heddle::shared
