#include "families/forward_sm90/forward_sm90_costs.h"

#include <fmt/format.h>

#include <algorithm>

#include "families/forward_sm90/shared/forward_sm90_config.h"

namespace heddle::plan {
namespace {

// Products of 8 bits leave P to be converted by an instruction of half the rate (hopper_rates), twice for four weights.
constexpr double kFp8SoftmaxClocks = 1.15;

constexpr bool every_kernel_fits(bool fp8) {
  return std::ranges::all_of(forward_sm90_kernels(fp8), [](const ForwardSm90Kernel& kernel) {
    shared::ForwardSm90Config largest = kernel.config();
    largest.by_sequence = true;
    largest.sinks = true;
    largest.page_rows = 1;
    return shared::forward_sm90_memory(largest).bytes <= kSm90SharedMemory;
  });
}
static_assert(every_kernel_fits(false) && every_kernel_fits(true));

std::span<const ForwardSm90Kernel> kernels_of(const shared::ForwardSm90Config& config, bool wide_capture) {
  if (wide_capture) return kForwardSm90WideCaptureKernels;
  return forward_sm90_kernels(config.fp8());
}

const ForwardSm90Kernel& kernel_of(const shared::ForwardSm90Config& config) {
  const HeadDims native = native_dims({config.qk_dim, config.v_dim}, config.fp8());
  for (const bool wide_capture : {false, true}) {
    if (wide_capture && config.streamed_bytes != 4) break;
    for (const ForwardSm90Kernel& kernel : kernels_of(config, wide_capture)) {
      if (dims_of(kernel) == native && kernel.warpgroups == config.warpgroups && kernel.kv_block == config.kv_block) {
        return kernel;
      }
    }
  }
  return kUnmeasuredKernel;
}

double step_loads(const shared::ForwardSm90Config& config) {
  return 1.0 * config.kv_block * (config.qk_dim + config.v_dim) * config.element_bytes() /
         kSm90Rates.l2_bytes_per_clock;
}

// A step that loses nothing: the slowest of its parts.
double ideal_step(const shared::ForwardSm90Config& config) {
  const int columns = config.qk_columns() + config.v_columns();
  const double wgmma =
      1.0 * config.warpgroups * config.kv_block * columns / config.product_step() * kSm90Rates.wgmma_clocks;
  const double softmax =
      config.rows() * config.kv_block * kSm90Rates.softmax_clocks * (config.fp8() ? kFp8SoftmaxClocks : 1);
  return std::max({wgmma, softmax + wgmma * kSm90Rates.softmax_beside_wgmma, step_loads(config)});
}

/// Clocks of the warps that bring a block's keys and values from their pages: they ask for boxes, or copy rows.
double step_pages(const shared::ForwardSm90Config& config) {
  if (!config.orders()) return 0;
  if (config.gathers()) {
    const double copies = (config.qk_dim + config.v_dim) * config.element_bytes() / 16.0,
                 row_pair = 2 * kSm90Rates.gather_row_clocks + copies * kSm90Rates.gather_copy_clocks;
    return config.kv_block * row_pair * 2 / config.gather_warps();
  }
  const int boxes = config.kv_block / config.page_box();
  const int keys = boxes * config.qk_panels(), values = boxes * config.v_panels();
  return kSm90Rates.page_box_clocks * (config.gather_warps() > 1 ? std::max(keys, values) : keys + values);
}

}  // namespace

std::string to_string(HeadDims dims) {
  return dims.qk == dims.v ? fmt::format("{}", dims.qk) : fmt::format("{}/{}", dims.qk, dims.v);
}

TileClocks forward_sm90_clocks(const shared::ForwardSm90Config& config) {
  const ForwardSm90Kernel& kernel = kernel_of(config);
  const double step =
      std::max(ideal_step(config) * (config.masked ? kernel.masked_stretch : kernel.stretch), step_pages(config));
  // The end of the keys alone costs next to nothing.
  const double partial = config.masked ? kernel.partial_clocks : 0;
  return {.full_step = step,
          .partial_step = step + partial,
          .tile = config.masked ? kernel.masked_tile_clocks : kernel.tile_clocks,
          .loads = std::max(step_loads(config), step_pages(config))};
}

bool is_spare(const shared::ForwardSm90Config& config) { return kernel_of(config).spare; }

double forward_sm90_seconds(const TileSchedule& schedule) {
  return kSm90Rates.launch_seconds + schedule.longest / kSm90Rates.clocks_per_second;
}

}  // namespace heddle::plan
