#include "families/forward_mma/forward_mma_costs.h"

#include <algorithm>
#include <array>

namespace heddle::plan {
namespace {

using shared::ForwardMmaConfig;
using shared::FragmentKind;

/// FLOP a clock of a multiprocessor in full steps. bench_forward_mma_variants and bench/compare_f32.py, H100, full and
/// causal, S 2048 and (16 bits) 8192: with kPartial and kTileKeys each of a kernel's times is within 3 % of these.
struct Measured {
  FragmentKind fragments;
  int most_dim, rows, kv_block;
  double flops_a_clock;
};
constexpr std::array kMeasured = {
    Measured{FragmentKind::mma, 64, 128, 128, 1416}, Measured{FragmentKind::mma, 64, 128, 64, 1232},
    Measured{FragmentKind::mma, 128, 128, 64, 1627}, Measured{FragmentKind::mma, 128, 128, 32, 1349},
    Measured{FragmentKind::outer, 64, 128, 64, 194}, Measured{FragmentKind::outer, 64, 128, 32, 191},
    Measured{FragmentKind::outer, 64, 64, 32, 171},  Measured{FragmentKind::outer, 128, 128, 32, 191},
    Measured{FragmentKind::outer, 128, 64, 32, 179}, Measured{FragmentKind::tf32, 64, 128, 64, 534},
    Measured{FragmentKind::tf32, 128, 128, 32, 541},
};
constexpr double kPartial = 1.3;          // of a full step's time
constexpr double kTileKeys = 128;         // what a tile costs beside its steps, as so many keys more
constexpr double kLaunchSeconds = 13e-6;  // of few queries (forward_mma_plans.cc)
// If a multiprocessor has one CTA, whose waves do not fill it, a tile takes this many times as long. A guess.
constexpr double kAlone = 1.6;
// Kernels that stand not in the table, by the best one of their fragments and head dimensions. A guess.
constexpr double kUnmeasured = 0.8;
constexpr double kOfMemory = 0.9;  // of its rate that copies reach, as on an H200

/// 0: nothing like it was measured.
double measured_rate(const ForwardMmaConfig& config) {
  const int dim = std::max(config.qk_dim, config.v_dim), bound = dim <= 64 ? 64 : 128;
  double best = 0;
  for (const Measured& row : kMeasured) {
    if (row.fragments != config.fragments || row.most_dim != bound) continue;
    if (dim <= bound && row.rows == config.rows() && row.kv_block == config.kv_block) return row.flops_a_clock;
    best = std::max(best, kUnmeasured * row.flops_a_clock);
  }
  return best;
}

bool is_known(const ForwardMmaConfig& config) {
  return config.rows() >= shared::kWarpgroupRows && !config.packs() && !config.splits_keys() && !config.converts() &&
         config.page_rows == 0 && config.value_slices == 1 && measured_rate(config) > 0;
}

}  // namespace

TileClocks forward_mma_clocks(const ForwardMmaConfig& config, const PortableRates* rates) {
  constexpr double kAnyRate = 1000;
  const double flops = 2.0 * config.rows() * config.kv_block * (config.qk_columns() + config.v_columns());
  double rate = measured_rate(config) > 0 ? measured_rate(config) : kAnyRate;
  if (rates != nullptr) rate = std::min(rate, kOfPeak * peak_of(config.fragments, *rates));
  const double step = flops / rate;
  return {.full_step = step, .partial_step = kPartial * step, .tile = kTileKeys / config.kv_block * step, .loads = 0};
}

std::optional<Prediction> forward_mma_prediction(const problem::AttentionProblem& problem,
                                                 const ForwardMmaConfig& config, const TileSchedule& schedule,
                                                 int multiprocessors, const PortableRates* rates) {
  if (rates == nullptr || !is_known(config)) return {};
  const auto dims = static_cast<double>(problem.qk_dim + problem.v_dim);
  const double rows = static_cast<double>(problem.packed ? 1 : problem.batch) *
                      static_cast<double>(problem.q_heads * problem.q_rows + problem.kv_heads * problem.kv_rows);
  const double bytes = config.element_bytes() * rows * dims;
  const double alone = std::ssize(schedule.items) <= multiprocessors ? kAlone : 1;
  const double computing = alone * schedule.longest / rates->clocks_per_second;
  return Prediction{
      .seconds = kLaunchSeconds + std::max(computing, bytes / (kOfMemory * rates->memory_bytes_per_second)),
      .flops = 2 * dims * static_cast<double>(schedule.elements),
      .bytes = bytes};
}

}  // namespace heddle::plan
