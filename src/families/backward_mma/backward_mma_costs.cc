#include "families/backward_mma/backward_mma_costs.h"

#include <algorithm>
#include <array>

namespace heddle::plan {
namespace {

using shared::BackwardMmaConfig;
using shared::FragmentKind;

enum class PassKind { once, keys, queries };

/// FLOP a clock of a multiprocessor in full steps, clocks of a tile beside its steps, and how many times as long tiles
/// of different lengths take. bench_backward_mma_variants, one H100, full and causal: 16 bits at S 2048 and 8192 (one
/// pass: 512, too), f32 and tf32 at S 2048, whose tiles are taken to cost what those of 16 bits do. Of two passes only
/// the sum was measured: a product has the same rate in both.
struct Measured {
  FragmentKind fragments;
  PassKind kind;
  int most_dim, rows, step;
  double flops_a_clock, tile_clocks, uneven;
};
constexpr double kTile64 = 7200, kTile128 = 19900, kTileOfTwo64 = 9000, kTileOfTwo128 = 8100;
using enum PassKind;
constexpr std::array kMeasured = {
    Measured{FragmentKind::mma, once, 64, 128, 32, 1383, kTile64, 1.11},
    Measured{FragmentKind::mma, once, 64, 128, 64, 1010, kTile64, 1.11},
    Measured{FragmentKind::mma, once, 128, 128, 64, 1341, kTile128, 1.03},
    Measured{FragmentKind::mma, once, 128, 64, 64, 1240, kTile128 / 2, 1.03},
    Measured{FragmentKind::mma, once, 128, 64, 32, 1060, kTile128 / 2, 1.03},
    Measured{FragmentKind::mma, keys, 64, 128, 32, 1301, kTileOfTwo64, 1.01},
    Measured{FragmentKind::mma, queries, 64, 128, 32, 1301, kTileOfTwo64, 1.01},
    Measured{FragmentKind::mma, keys, 128, 64, 64, 1461, kTileOfTwo128, 1.045},
    Measured{FragmentKind::mma, queries, 128, 128, 32, 1461, kTileOfTwo128, 1.045},
    Measured{FragmentKind::outer, once, 64, 128, 32, 166, kTile64, 1},
    Measured{FragmentKind::outer, once, 64, 128, 64, 155, kTile64, 1},
    Measured{FragmentKind::outer, once, 64, 64, 64, 163, kTile64 / 2, 1},
    Measured{FragmentKind::outer, once, 64, 64, 32, 150, kTile64 / 2, 1},
    Measured{FragmentKind::outer, once, 128, 128, 64, 161, kTile128, 1},
    Measured{FragmentKind::outer, once, 128, 64, 32, 161, kTile128 / 2, 1},
    Measured{FragmentKind::outer, keys, 64, 128, 32, 170, kTileOfTwo64, 1},
    Measured{FragmentKind::outer, queries, 64, 128, 32, 170, kTileOfTwo64, 1},
    Measured{FragmentKind::outer, keys, 128, 128, 64, 170, kTileOfTwo128, 1},
    Measured{FragmentKind::outer, queries, 128, 128, 64, 170, kTileOfTwo128, 1},
    Measured{FragmentKind::tf32, once, 64, 128, 32, 470, kTile64, 1.06},
    Measured{FragmentKind::tf32, once, 64, 128, 64, 360, kTile64, 1},
    Measured{FragmentKind::tf32, once, 128, 128, 64, 376, kTile128, 1.02},
    Measured{FragmentKind::tf32, once, 128, 64, 32, 379, kTile128 / 2, 1.02},
    Measured{FragmentKind::tf32, keys, 64, 128, 32, 495, kTileOfTwo64, 1.03},
    Measured{FragmentKind::tf32, queries, 64, 128, 32, 495, kTileOfTwo64, 1.03},
    Measured{FragmentKind::tf32, keys, 128, 128, 64, 470, kTileOfTwo128, 1},
    Measured{FragmentKind::tf32, queries, 128, 128, 64, 470, kTileOfTwo128, 1},
};
constexpr double kLaunchSeconds = 15e-6;  // of all kernels of a run
// The kernels around read and write memory at 2.6 TB/s on an H100: this share of what the chips' table says of it.
constexpr double kOfMemory = 0.62;
// If a multiprocessor has one CTA, whose waves do not fill it, a tile takes this many times as long. A guess.
constexpr double kAlone = 1.6;
// Kernels that are not in the table, relative to the best one of their kind. A guess.
constexpr double kUnmeasured = 0.8;

int bound_of(const BackwardMmaConfig& pass) { return std::max(pass.qk_dim, pass.v_dim) <= 64 ? 64 : 128; }

PassKind kind_of(const BackwardMmaConfig& pass) { return pass.adds_d_q ? once : pass.of_keys ? keys : queries; }

/// Null: nothing like it was measured. `flops_a_clock` is as the pass has it.
std::optional<Measured> measured(const BackwardMmaConfig& pass) {
  const bool is_whole = pass.slices == 1 && pass.reads == 0 && !pass.all_sequences && !pass.descaled &&
                        (!pass.of_keys || (pass.d_qk && pass.d_v)) && std::max(pass.qk_dim, pass.v_dim) <= 128;
  std::optional<Measured> best;
  if (!is_whole) return best;
  for (Measured row : kMeasured) {
    if (row.fragments != pass.fragments || row.kind != kind_of(pass) || row.most_dim != bound_of(pass)) continue;
    if (row.rows == pass.rows() && row.step == pass.step) return row;
    row.flops_a_clock *= kUnmeasured;
    if (!best || row.flops_a_clock > best->flops_a_clock) best = row;
  }
  return best;
}

/// Products of a pair, of `columns` columns: of q and k, and of v and dO.
double flops_of_pair(PassKind kind, double qk, double v) {
  switch (kind) {
    case once:
      return 2 * (3 * qk + 2 * v);
    case keys:
      return 2 * (2 * qk + 2 * v);
    default:
      return 2 * (2 * qk + v);
  }
}

double seconds_of(const BackwardMmaConfig& pass, const BackwardSchedule& schedule, int multiprocessors,
                  const PortableRates& rates) {
  const Measured own = measured(pass).value();
  const double rate = std::min(own.flops_a_clock, kOfPeak * peak_of(pass.fragments, rates));
  // Fewer columns than the bound's save next to nothing that was measured.
  const double step =
      flops_of_pair(own.kind, own.most_dim, own.most_dim) * pass.tile().rows() * shared::kBackwardBlock / rate;
  const auto tiles = static_cast<double>(schedule.items.size());
  const bool uneven = static_cast<double>(schedule.longest) * tiles > 1.05 * static_cast<double>(schedule.steps);
  const double all = (static_cast<double>(schedule.steps) * step + tiles * own.tile_clocks) /
                     std::max(1, multiprocessors) * (uneven ? own.uneven : 1),
               longest = static_cast<double>(schedule.longest) * step + own.tile_clocks,
               alone = tiles <= multiprocessors ? kAlone : 1;
  return alone * std::max(all, longest) / rates.clocks_per_second;
}

}  // namespace

bool has_known_times(const BackwardMmaKernels& kernels, const PortableRates* rates) {
  return rates != nullptr && !kernels.passes.empty() && kernels.widen.empty() &&
         std::ranges::all_of(kernels.passes, [](const BackwardMmaConfig& pass) { return measured(pass).has_value(); });
}

Prediction backward_mma_prediction(const problem::AttentionProblem& problem, const BackwardMmaKernels& kernels,
                                   const std::function<const BackwardSchedule&(const BackwardMmaConfig&)>& schedule_of,
                                   int multiprocessors, const PortableRates& rates) {
  const auto qk = static_cast<double>(problem.qk_dim), v = static_cast<double>(problem.v_dim),
             element = static_cast<double>(size_of(problem.q_dtype)),
             batch = static_cast<double>(problem.packed ? 1 : problem.batch);
  const double rows = batch * static_cast<double>(problem.q_rows * problem.q_heads),
               keys_rows = batch * static_cast<double>(problem.kv_rows * problem.kv_heads);
  const double numbers = problem.normalizer == Normalizer::softmax ? 2 * v * element : 0,
               sums = kernels.passes.front().adds_d_q ? 8.0 * bound_of(kernels.passes.front()) + qk * element : 0;
  const double around = rows * (numbers + sums);
  Prediction prediction;
  prediction.seconds = kLaunchSeconds + around / (kOfMemory * rates.memory_bytes_per_second);
  for (const BackwardMmaConfig& pass : kernels.passes) {
    const BackwardSchedule& schedule = schedule_of(pass);
    prediction.seconds += seconds_of(pass, schedule, multiprocessors, rates);
    // Five products count, whatever passes compute twice, as for backward_sm90.
    prediction.flops = flops_of_pair(once, qk, v) * static_cast<double>(schedule.elements);
  }
  prediction.bytes = around + rows * (qk + v) * element + 2 * keys_rows * (qk + v) * element;
  if (!kernels.passes.front().adds_d_q) prediction.bytes += rows * qk * element;
  return prediction;
}

}  // namespace heddle::plan
