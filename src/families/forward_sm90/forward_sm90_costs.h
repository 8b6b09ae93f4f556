// The kernels of the Hopper forward family and what they cost. Every number here was measured on one H200 (700 W), by
// the program of bench/ that its comment names; bench_forward_sm90_costs prints this table anew.
//
// A step multiplies two warpgroup products and runs one softmax beside them. A saturated tensor core slows the work
// beside it, so a step takes max(products, softmax + products / 3, keys and values through L2). A kernel's stretch
// multiplies this by its further losses: waits, issue slots, and the power limit, under which the clock falls.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/hopper/sm90_chip.h"
#include "plan/tiles/key_rows.h"
#include "plan/tiles/schedule.h"

namespace heddle::plan {

/// One kernel of the family, for its head dims and for smaller ones without kernels of their own. Its costs:
/// forward_sm90_costs.
struct ForwardSm90Kernel {
  int qk_dim, v_dim, warpgroups, kv_block, stages, q_buffers, o_panels;
  bool spare;                      // only where no other fits a caller's block mask, mods may spill all others, or
                                   // finer blocks of a mask whose bits are stored leave out more
  double stretch, masked_stretch;  // of a full step, in the kernel without a mask and in the one with
  double partial_clocks;           // what a partial step costs more
  double tile_clocks, masked_tile_clocks;  // what a tile costs beside its steps
  bool fp8 = false;                        // of 8-bit storage

  constexpr shared::ForwardSm90Config config() const { return config(qk_dim, v_dim); }
  /// The configuration of this tile, multiplying and loading no more than these head dims need.
  constexpr shared::ForwardSm90Config config(int qk, int v) const {
    return {.qk_dim = qk,
            .v_dim = v,
            .warpgroups = warpgroups,
            .kv_block = kv_block,
            .stages = stages,
            .q_buffers = q_buffers,
            .o_panels = std::min(o_panels, (v + shared::kPanelColumns - 1) / shared::kPanelColumns),
            .f16 = false,
            .lse = false,
            .masked = false,
            .q_fp8 = fp8 ? shared::Fp8::e4m3 : shared::Fp8::none,
            .k_fp8 = fp8 ? shared::Fp8::e4m3 : shared::Fp8::none,
            .v_fp8 = fp8 ? shared::Fp8::e4m3 : shared::Fp8::none};
  }
};
inline constexpr std::array<ForwardSm90Kernel, 16> kForwardSm90Kernels = {{
    // A tile of 0 clocks is the fit's floor: partial steps carry its cost.
    // Dqk Dv WGs keys stages q o spare stretch masked partial tile masked
    {64, 64, 3, 128, 3, 2, 1, false, 1.105, 1.164, 2578, 3464, 719},
    {64, 64, 2, 128, 3, 2, 1, false, 1.276, 1.402, 1697, 2312, 0},
    {64, 64, 3, 112, 3, 2, 1, true, 1.12, 1.18, 2600, 3464, 719},
    {64, 64, 2, 64, 3, 2, 1, true, 1.617, 1.768, 1346, 2567, 1262},
    {96, 96, 3, 96, 2, 2, 1, false, 1.213, 1.247, 2347, 4989, 1614},
    {96, 96, 2, 128, 2, 2, 2, false, 1.328, 1.367, 1276, 3016, 958},
    {96, 96, 2, 64, 3, 2, 2, true, 1.560, 1.641, 1184, 3969, 2113},
    {128, 128, 3, 80, 2, 2, 2, false, 1.083, 1.115, 1545, 4633, 2950},
    {128, 128, 2, 128, 2, 2, 2, false, 1.159, 1.174, 546, 2923, 2055},
    {128, 128, 2, 64, 2, 2, 2, true, 1.296, 1.326, 608, 3895, 3585},
    {192, 128, 2, 128, 2, 1, 1, false, 1.071, 1.074, 585, 4717, 3709},
    {192, 128, 2, 64, 2, 2, 2, true, 1.197, 1.241, 1622, 5032, 2745},
    {192, 192, 2, 80, 2, 1, 3, false, 1.051, 1.062, 1696, 5639, 3094},
    {192, 192, 2, 64, 2, 1, 3, true, 1.082, 1.118, 2229, 6219, 3804},
    {256, 256, 2, 64, 2, 1, 2, false, 1.045, 1.063, 2346, 6536, 4636},
    {256, 256, 2, 32, 4, 1, 2, true, 1.3, 1.3, 1500, 6500, 4600},
}};
/// Further 16-bit kernels, where a capture of f32 is streamed: its tiles leave no room for the faster ones at these
/// head dims. Stretch: that of 128 x 64 keys times 0.85, the ratio of a bias's times on this kernel and on that one
/// (docs/notes/hopper_mods.md); the rest is 192 x 80's.
inline constexpr std::array<ForwardSm90Kernel, 1> kForwardSm90WideCaptureKernels = {{
    {128, 128, 3, 64, 2, 1, 2, false, 1.10, 1.13, 1545, 4633, 2950},
}};
/// And those of 8-bit storage, by `bench_forward_sm90_costs --fp8`.
inline constexpr std::array<ForwardSm90Kernel, 16> kForwardSm90Fp8Kernels = {{
    {64, 64, 3, 128, 3, 2, 1, false, 1.090, 1.091, 4032, 2996, 182, true},
    {64, 64, 2, 128, 3, 2, 1, false, 1.200, 1.290, 1693, 2144, 433, true},
    {64, 64, 2, 64, 3, 2, 1, true, 1.718, 1.860, 1250, 1866, 1213, true},
    {128, 128, 3, 96, 3, 2, 2, false, 1.101, 1.179, 2401, 4434, 1449, true},
    {128, 128, 2, 128, 3, 2, 2, false, 1.260, 1.304, 1562, 2444, 910, true},
    {128, 128, 2, 192, 2, 2, 2, false, 1.132, 1.082, 4216, 2785, 0, true},
    {128, 128, 2, 64, 3, 2, 2, true, 1.758, 1.825, 1076, 2073, 1654, true},
    {192, 128, 3, 96, 2, 1, 2, false, 1.104, 1.177, 2100, 6225, 4095, true},
    {192, 128, 2, 128, 2, 1, 2, false, 1.257, 1.296, 687, 4095, 2993, true},
    {192, 128, 2, 64, 3, 1, 2, true, 1.810, 1.780, 1399, 3193, 3247, true},
    {192, 192, 2, 96, 2, 1, 3, false, 1.389, 1.422, 1614, 5058, 3540, true},
    {192, 192, 2, 64, 2, 1, 3, true, 1.644, 1.776, 1655, 6250, 3760, true},
    {192, 192, 2, 32, 4, 1, 3, true, 2.092, 2.428, 985, 7943, 4381, true},
    {256, 256, 2, 96, 2, 1, 2, false, 1.370, 1.392, 1578, 6392, 4710, true},
    {256, 256, 2, 64, 2, 1, 2, true, 1.721, 1.726, 1618, 5582, 4963, true},
    {256, 256, 2, 32, 4, 1, 2, true, 2.068, 2.276, 1003, 8196, 5835, true},
}};
constexpr std::span<const ForwardSm90Kernel> forward_sm90_kernels(bool fp8) {
  if (fp8) return kForwardSm90Fp8Kernels;
  return kForwardSm90Kernels;
}

/// Head dims that have kernels of their own.
struct HeadDims {
  int qk, v;
  constexpr bool operator==(const HeadDims&) const = default;
};
constexpr HeadDims dims_of(const ForwardSm90Kernel& kernel) { return {kernel.qk_dim, kernel.v_dim}; }
/// The head dims whose kernels serve these: the first of the table that are as large. {0, 0}: none.
constexpr HeadDims native_dims(HeadDims dims, bool fp8 = false) {
  for (const ForwardSm90Kernel& kernel : forward_sm90_kernels(fp8)) {
    if (kernel.qk_dim >= dims.qk && kernel.v_dim >= dims.v) return dims_of(kernel);
  }
  return {0, 0};
}
/// "96", or "192/128" where queries and keys have others than values.
std::string to_string(HeadDims dims);

/// For shapes that stand not in the table.
inline constexpr ForwardSm90Kernel kUnmeasuredKernel = {0, 0, 0, 0, 0, 0, 0, true, 1.3, 1.3, 1500, 4000, 4000};

/// Costs of the parts of its tiles, in clocks of kSm90Rates.clocks_per_second.
TileClocks forward_sm90_clocks(const shared::ForwardSm90Config& config);
/// Whether the table calls this kernel a spare one; false for a kernel that the table does not have.
bool is_spare(const shared::ForwardSm90Config& config);
/// Seconds of one launch.
double forward_sm90_seconds(const TileSchedule& schedule);

}  // namespace heddle::plan
