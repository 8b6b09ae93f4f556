// Measures what steps, tiles and launches of the Hopper kernels cost: the table of
// src/families/forward_sm90/forward_sm90_costs.h.
//
//   bench_forward_sm90_costs [--rounds N] [--seconds S] [--device I] [--fp8] [--dry-run]
//
// Runs every kernel of the table, without and with a mask, on problems that differ in steps a tile and tiles a CTA, all
// of them in each of N rounds of S seconds each. The medians are fitted by least squares, by the longest CTA of each
// schedule: steps, partial steps, tiles, launch. Printed are the costs beside those that are compiled in, rows to paste
// into the table, and the planner's choice on the grid of the measured problems: what it loses to the fastest kernel.
//
// --fp8 takes the table of 8-bit kernels instead, on e4m3. --dry-run takes the model's own times, on no GPU: the fit
// must give the table back.
#include "families/forward_sm90/forward_sm90_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "families/forward_sm90/forward_sm90.h"
#include "forward_sm90_cases.h"
#include "least_squares.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::bench {
namespace {

using plan::ForwardSm90Kernel;
using plan::HeadDims;
using shared::ForwardSm90Config;

// The grid of bench/compare.py, and smaller ones, which tell the launch from the tiles.
std::vector<Problem> problems(bool masked) {
  std::vector<Problem> all;
  for (const std::string_view mask :
       masked ? std::vector<std::string_view>{"causal", "window"} : std::vector<std::string_view>{"full"}) {
    for (const std::int64_t length : {512, 2048, 8192, 16384}) all.push_back({mask, length, kTokens});
    all.push_back({mask, 512, kTokens / 8});
    all.push_back({mask, 2048, kTokens / 4});
  }
  return all;
}

struct Case : TimedCase {
  Case(const ForwardSm90Kernel& of, const Problem& asked) : TimedCase(asked, of.config()), kernel(&of) {}

  const ForwardSm90Kernel* kernel;
  plan::TileSchedule schedule{};
  Observation<4> observation{};  // steps, those of them that are partial, tiles, 1; of the longest CTA
};

std::array<double, 4> longest_cta(const plan::TileSchedule& schedule, const ForwardSm90Config& config) {
  const plan::TileClocks clocks = plan::forward_sm90_clocks(config);
  std::vector<std::array<double, 4>> ctas(static_cast<std::size_t>(schedule.grid), {0, 0, 0, 1});
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const shared::WorkItem& item = schedule.items[i];
    std::array<double, 4>& own = ctas[schedule.ctas[i]];
    own[2] += 1;
    for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
      const shared::KvRun& run = schedule.runs[static_cast<std::size_t>(r)];
      const double share = static_cast<double>(run.end - run.begin) / config.warpgroups;
      for (int w = 0; w < config.warpgroups; ++w) {
        if (run.flags & shared::kStepAttends << w) own[0] += share;
        if (run.flags & shared::kStepPartial << w) own[1] += share;
      }
    }
  }
  return *std::ranges::max_element(ctas, {}, [&](const std::array<double, 4>& own) {
    return own[0] * clocks.full_step + own[1] * (clocks.partial_step - clocks.full_step) + own[2] * clocks.tile;
  });
}

Case make_case(const ForwardSm90Kernel& kernel, const Problem& problem, const device::CudaCaps& caps) {
  Case c(kernel, problem);
  problem::AttentionProblem asked;
  asked.batch = problem.tokens / problem.length;
  asked.q_heads = asked.kv_heads = heads_of(c.config);
  asked.q_rows = asked.kv_rows = problem.length;
  asked.qk_dim = kernel.qk_dim;
  asked.v_dim = kernel.v_dim;
  asked.sequences.assign(static_cast<std::size_t>(asked.batch), {.q_len = problem.length, .kv_len = problem.length});
  c.schedule = plan::forward_sm90_schedule(asked, c.config, c.rows.get(), caps);
  c.observation.terms = longest_cta(c.schedule, c.config);
  return c;
}

struct Fit {
  double stretch = 0, partial = 0, tile = 0, launch = 0, worst = 0;
};

Fit fit(const std::vector<Case>& cases, const ForwardSm90Kernel& kernel, bool masked) {
  std::vector<Observation<4>> observations;
  ForwardSm90Config config = kernel.config();
  config.masked = masked;
  for (const Case& c : cases) {
    if (c.kernel != &kernel || c.config.masked != masked) continue;
    observations.push_back({c.observation.terms, c.median()});
  }
  const std::array<double, 4> costs = least_squares<4>(observations);
  Fit result;
  const double clock = plan::kSm90Rates.clocks_per_second;
  const double compiled = masked ? kernel.masked_stretch : kernel.stretch;
  result.stretch = costs[0] * clock * compiled / plan::forward_sm90_clocks(config).full_step;
  result.partial = costs[1] * clock;
  result.tile = costs[2] * clock;
  result.launch = costs[3];
  for (const Observation<4>& o : observations) {
    double predicted = 0;
    for (std::size_t i = 0; i < 4; ++i) predicted += o.terms[i] * costs[i];
    result.worst = std::max(result.worst, std::abs(predicted / o.value - 1));
  }
  return result;
}

using Kernels = std::span<const ForwardSm90Kernel>;

void print_costs(const std::vector<Case>& cases, Kernels kernels) {
  fmt::print("{:24} {:>16} {:>16} {:>16} {:>10} {:>8}\n", "kernel (measured/table)", "stretch", "partial clocks",
             "tile clocks", "launch us", "worst");
  std::string rows;
  for (const ForwardSm90Kernel& kernel : kernels) {
    const Fit full = fit(cases, kernel, false), masked = fit(cases, kernel, true);
    for (const auto& [form, costs, stretch, tile] :
         {std::tuple("full", full, kernel.stretch, kernel.tile_clocks),
          std::tuple("masked", masked, kernel.masked_stretch, kernel.masked_tile_clocks)}) {
      fmt::print("{:24} {:16} {:16} {:16} {:10.2f} {:6.1f} %\n",
                 fmt::format("D {} {} x {} {}", plan::to_string(plan::dims_of(kernel)), kernel.config().rows(),
                             kernel.kv_block, form),
                 fmt::format("{:.3f} / {:.3f}", costs.stretch, stretch),
                 fmt::format("{:.0f} / {:.0f}", costs.partial, kernel.partial_clocks),
                 fmt::format("{:.0f} / {:.0f}", costs.tile, tile), costs.launch * 1e6, 100 * costs.worst);
    }
    rows += fmt::format("    {{{}, {}, {}, {}, {}, {}, {}, {}, {:.3f}, {:.3f}, {:.0f}, {:.0f}, {:.0f}{}}},\n",
                        kernel.qk_dim, kernel.v_dim, kernel.warpgroups, kernel.kv_block, kernel.stages,
                        kernel.q_buffers, kernel.o_panels, kernel.spare, full.stretch, masked.stretch, masked.partial,
                        full.tile, masked.tile, kernel.fp8 ? ", true" : "");
  }
  fmt::print("\nRows for the table:\n{}\n", rows);
}

/// The head dims of the table, each once.
std::vector<HeadDims> all_dims(Kernels kernels) {
  std::vector<HeadDims> all;
  for (const ForwardSm90Kernel& kernel : kernels) {
    if (all.empty() || !(all.back() == plan::dims_of(kernel))) all.push_back(plan::dims_of(kernel));
  }
  return all;
}

// Loss of the table's choice on each problem, by the times measured now.
void print_choices(const std::vector<Case>& cases, Kernels kernels) {
  fmt::print("{:7} {:8} {:>6} {:>7}  {:40} {:>9}\n", "D", "mask", "S", "tokens",
             "measured ms (predicted), of all kernels", "loss");
  for (const HeadDims& dims : all_dims(kernels)) {
    for (const bool masked : {false, true}) {
      for (const Problem& problem : problems(masked)) {
        const Case *fastest = nullptr, *chosen = nullptr;
        std::string times;
        for (const Case& c : cases) {
          if (!(plan::dims_of(*c.kernel) == dims) || c.problem.mask != problem.mask ||
              c.problem.length != problem.length || c.problem.tokens != problem.tokens || c.kernel->spare) {
            continue;
          }
          const double predicted = plan::forward_sm90_seconds(c.schedule);
          times += fmt::format("{}x{}: {:.3f} ({:.3f})  ", c.config.rows(), c.config.kv_block, c.median() * 1e3,
                               predicted * 1e3);
          if (fastest == nullptr || c.median() < fastest->median()) fastest = &c;
          if (chosen == nullptr || predicted < plan::forward_sm90_seconds(chosen->schedule)) chosen = &c;
        }
        if (chosen == nullptr) continue;
        fmt::print("{:<7} {:8} {:6} {:7}  {:40} {:7.1f} %\n", plan::to_string(dims), problem.mask, problem.length,
                   problem.tokens, times, 100 * (chosen->median() / fastest->median() - 1));
      }
    }
  }
}

int run(int rounds, double seconds, int device, bool fp8, bool dry_run) {
  const Kernels kernels = plan::forward_sm90_kernels(fp8);
  device::CudaCaps caps = {.index = 0,
                           .name = "H200",
                           .major = 9,
                           .minor = 0,
                           .multiprocessors = 132,
                           .shared_memory_bytes = 232448,
                           .l2_bytes = 52428800};
  if (!dry_run) {
    if (const std::string reason = cuda::driver_missing(); !reason.empty()) {
      fmt::print(stderr, "no CUDA device: {}\n", reason);
      return 2;
    }
    caps = cuda::devices().at(static_cast<std::size_t>(device));
  }
  std::vector<Case> cases;
  for (const ForwardSm90Kernel& kernel : kernels) {
    for (const bool masked : {false, true}) {
      for (const Problem& problem : problems(masked)) cases.push_back(make_case(kernel, problem, caps));
    }
  }
  if (dry_run) {
    for (Case& c : cases) c.seconds.push_back(plan::forward_sm90_seconds(c.schedule));
  } else {
    std::vector<TimedCase*> all;
    for (Case& c : cases) all.push_back(&c);
    measure(all, device, rounds, seconds);
    std::erase_if(cases, [](const Case& c) { return c.seconds.empty(); });
  }
  fmt::print("{}, {} multiprocessors\n\n", caps.name, caps.multiprocessors);
  print_costs(cases, kernels);
  print_choices(cases, kernels);
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  int rounds = 7, device = 0;
  double seconds = 0.01;
  bool fp8 = false, dry_run = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--dry-run") {
      dry_run = true;
    } else if (argument == "--fp8") {
      fp8 = true;
    } else if (argument == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (argument == "--device" && i + 1 < argc) {
      device = std::atoi(argv[++i]);
    } else {
      fmt::print(stderr,
                 "usage: bench_forward_sm90_costs [--rounds N] [--seconds S] [--device I] [--fp8] [--dry-run]\n");
      return 2;
    }
  }
  try {
    return heddle::bench::run(rounds, seconds, device, fp8, dry_run);
  } catch (const heddle::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
