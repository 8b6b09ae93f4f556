// The kernels of the Hopper forward family and what they cost. Every number here was measured on one H200 (700 W), by
// the program of bench/ that its comment names; bench_forward_sm90_costs prints this table anew.
//
// A step multiplies two warpgroup products and runs one softmax beside them. A saturated tensor core slows what runs
// beside it, so a step takes max(products, softmax + products / 3, keys and values through L2), stretched by what one
// kernel loses over that: waits, issue slots, and the power limit, under which the clock falls.
#pragma once

#include <array>

#include "shared/forward_sm90.h"

namespace heddle::plan {

/// What the parts of one multiprocessor do, and the whole chip.
struct Sm90Rates {
  double clocks_per_second;        // hopper_rates: clock under products without a pause
  double wgmma_clocks;             // hopper_rates: of m64nNk16, a column of N
  double softmax_clocks;           // hopper_rates: of a score, nothing beside it
  double softmax_beside_wgmma;     // hopper_rates: share of the products' time that the softmax beside them loses
  double l2_bytes_per_clock;       // hopper_rates: TMA loads of distinct tiles by all multiprocessors, for each
  double memory_bytes_per_second;  // hopper_rates: copies
  double launch_seconds;           // forward_sm90_costs: what a launch costs beside its tiles
};
inline constexpr Sm90Rates kSm90Rates = {.clocks_per_second = 1.677e9,
                                         .wgmma_clocks = 0.5001,
                                         .softmax_clocks = 0.06401,
                                         .softmax_beside_wgmma = 0.3465,
                                         .l2_bytes_per_clock = 36.91,
                                         .memory_bytes_per_second = 3.787e12,
                                         .launch_seconds = 10.6e-6};

/// One kernel of the family. Its costs: forward_sm90_costs.
struct ForwardSm90Kernel {
  int head_dim, warpgroups, kv_block, stages, q_buffers, o_panels;
  bool spare;                      // only where no other fits a caller's block mask, or mods may spill all others
  double stretch, masked_stretch;  // of a full step, in the kernel without a mask and in the one with
  double partial_clocks;           // what a partial step costs more
  double tile_clocks, masked_tile_clocks;  // what a tile costs beside its steps

  constexpr shared::ForwardSm90Config config() const {
    return {.head_dim = head_dim,
            .warpgroups = warpgroups,
            .kv_block = kv_block,
            .stages = stages,
            .q_buffers = q_buffers,
            .o_panels = o_panels,
            .f16 = false,
            .lse = false,
            .masked = false};
  }
};
inline constexpr std::array<ForwardSm90Kernel, 9> kForwardSm90Kernels = {{
    // A tile of 0 clocks is the fit's floor: partial steps carry its cost.
    // D  WGs keys stages q  o spare stretch masked partial tile masked
    {64, 3, 128, 3, 2, 1, false, 1.105, 1.164, 2578, 3464, 719},
    {64, 2, 128, 3, 2, 1, false, 1.276, 1.402, 1697, 2312, 0},
    {64, 3, 112, 3, 2, 1, true, 1.12, 1.18, 2600, 3464, 719},
    {64, 2, 64, 3, 2, 1, true, 1.617, 1.768, 1346, 2567, 1262},
    {128, 3, 80, 2, 2, 2, false, 1.083, 1.115, 1545, 4633, 2950},
    {128, 2, 128, 2, 2, 2, false, 1.159, 1.174, 546, 2923, 2055},
    {128, 2, 64, 2, 2, 2, true, 1.296, 1.326, 608, 3895, 3585},
    {256, 2, 64, 2, 1, 2, false, 1.045, 1.063, 2346, 6536, 4636},
    {256, 2, 32, 4, 1, 2, true, 1.3, 1.3, 1500, 6500, 4600},
}};
/// For shapes that stand not in the table.
inline constexpr ForwardSm90Kernel kUnmeasuredKernel = {0, 0, 0, 0, 0, 0, true, 1.3, 1.3, 1500, 4000, 4000};

/// What the parts of a kernel's work take, in clocks of kSm90Rates.clocks_per_second.
struct ForwardSm90Clocks {
  double full_step, partial_step, tile;
};
ForwardSm90Clocks forward_sm90_clocks(const shared::ForwardSm90Config& config);

}  // namespace heddle::plan
