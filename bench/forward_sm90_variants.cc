// Times choices of the Hopper family that have no cost of their own, beside those of the table, on the causal grid of
// bench/compare.py: the order of tiles (plan::TileOrder) and the stages of each kernel.
//
//   bench_forward_sm90_variants [--rounds N] [--seconds S] [--device I] [--dropout] [--fp8]
//
// Prints, for each kernel and length, how many times as fast as the table's each variant is. With --dropout: what
// dropout costs beside the same kernel without. With --fp8: tiles of 8 bits at D 64 and 128, those of the table and
// others.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "forward_sm90_cases.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::bench {
namespace {

constexpr std::array<std::int64_t, 4> kLengths = {512, 2048, 8192, 16384};

struct Variant {
  std::string name;
  shared::ForwardSm90Config config;
  plan::TileOrder order;
};

/// The first is the table's.
std::vector<Variant> variants_of(const plan::ForwardSm90Kernel& kernel) {
  std::vector<Variant> variants = {{"table", kernel.config(), {}}};
  for (const std::int64_t megabytes : {4, 8, 16, 32}) {
    for (const double share : {0.0, 0.06, 0.12, 0.24}) {
      const plan::TileOrder order = {megabytes * 1'000'000, share};
      variants.push_back({fmt::format("{} MB, {:.0f} % last", megabytes, 100 * share), kernel.config(), order});
    }
  }
  for (int stages = 2; stages <= 4; ++stages) {
    shared::ForwardSm90Config config = kernel.config();
    config.stages = stages;
    const bool fits = shared::forward_sm90_memory(config).bytes <= plan::kSm90SharedMemory;
    if (fits && stages != kernel.stages) variants.push_back({fmt::format("{} stages", stages), config, {}});
  }
  return variants;
}

void print_kernel(const std::vector<Variant>& variants, const std::deque<TimedCase>& cases) {
  const shared::ForwardSm90Config& config = variants.front().config;
  fmt::print("\n{:24}", fmt::format("D {}, {} x {}", plan::to_string(plan::HeadDims{config.qk_dim, config.v_dim}),
                                    config.rows(), config.kv_block));
  for (const std::int64_t length : kLengths) fmt::print("{:>10}", length);
  fmt::print("\n");
  for (std::size_t v = 0; v < variants.size(); ++v) {
    fmt::print("{:24}", variants[v].name);
    for (std::size_t l = 0; l < kLengths.size(); ++l) {
      const TimedCase& own = cases[v * kLengths.size() + l];
      if (own.seconds.empty()) {
        fmt::print("{:>10}", "-");
      } else if (v == 0) {
        fmt::print("{:>7.3f} ms", own.median() * 1e3);
      } else {
        fmt::print("{:>10.3f}", cases[l].median() / own.median());
      }
    }
    fmt::print("\n");
  }
}

constexpr std::array<Problem, 4> kDropoutProblems = {
    {{"full", 2048, kTokens}, {"full", 8192, kTokens}, {"causal", 2048, kTokens}, {"causal", 8192, kTokens}}};

void time_dropout(const shared::ForwardSm90Config& kernel, int device, int rounds, double seconds) {
  std::vector<Variant> variants = {{"without", kernel, {}}, {"with", kernel, {}}};
  variants.back().config.dropped = true;
  std::deque<TimedCase> cases;
  std::vector<TimedCase*> all;
  for (const Variant& variant : variants) {
    for (const Problem& problem : kDropoutProblems) {
      TimedCase& added = cases.emplace_back(problem, variant.config);
      added.dropout = variant.config.dropped;
      all.push_back(&added);
    }
  }
  measure(all, device, rounds, seconds);
  fmt::print("\n{:24}", fmt::format("D {}, {} x {}", plan::to_string(plan::HeadDims{kernel.qk_dim, kernel.v_dim}),
                                    kernel.rows(), kernel.kv_block));
  for (const Problem& problem : kDropoutProblems)
    fmt::print("{:>18}", fmt::format("{} {}", problem.mask, problem.length));
  fmt::print("\n");
  for (std::size_t v = 0; v < variants.size(); ++v) {
    fmt::print("{:24}", variants[v].name);
    for (std::size_t p = 0; p < kDropoutProblems.size(); ++p) {
      const TimedCase &own = cases[v * kDropoutProblems.size() + p], &without = cases[p];
      if (own.seconds.empty() || without.seconds.empty()) {
        fmt::print("{:>18}", "-");
      } else {
        fmt::print("{:>8.3f} ms, x{:.2f}", own.median() * 1e3, own.median() / without.median());
      }
    }
    fmt::print("\n");
  }
  std::fflush(stdout);
}

int run_dropout(int rounds, double seconds, int device) {
  std::vector<shared::ForwardSm90Config> kernels;
  const auto add = [&](std::span<const plan::ForwardSm90Kernel> table) {
    for (const plan::ForwardSm90Kernel& kernel : table) {
      const bool fits = kernel.kv_block % shared::kKeysOfDraw == 0;
      if (fits && kernel.qk_dim == kernel.v_dim && kernel.qk_dim != 192) kernels.push_back(kernel.config());
    }
  };
  add(plan::kForwardSm90Kernels);
  add(plan::kForwardSm90WideCaptureKernels);
  for (const shared::ForwardSm90Config& kernel : kernels) time_dropout(kernel, device, rounds, seconds);
  return 0;
}

struct Tile {
  int warpgroups, kv_block, stages, o_panels;
};
constexpr std::array<Tile, 6> kFp8Tiles = {
    {{3, 64, 3, 2}, {3, 96, 2, 2}, {3, 96, 3, 2}, {3, 128, 3, 2}, {2, 128, 3, 2}, {2, 192, 2, 2}}};
constexpr std::array<Problem, 6> kFp8Problems = {{{"full", 2048, kTokens},
                                                  {"full", 8192, kTokens},
                                                  {"full", 16384, kTokens},
                                                  {"causal", 2048, kTokens},
                                                  {"causal", 8192, kTokens},
                                                  {"causal", 16384, kTokens}}};

/// Causal problems count half of their products.
double flops_of(const TimedCase& timed) {
  const double pairs = static_cast<double>(timed.problem.length) * static_cast<double>(timed.problem.tokens) *
                       (timed.problem.mask == "causal" ? 0.5 : 1);
  return 2 * pairs * (timed.config.qk_dim + timed.config.v_dim) * static_cast<double>(heads_of(timed.config));
}

int run_fp8(int rounds, double seconds, int device) {
  for (const int dim : {128, 64}) {
    std::deque<TimedCase> cases;
    std::vector<TimedCase*> all;
    for (const Tile& tile : kFp8Tiles) {
      const plan::ForwardSm90Kernel kernel = {
          dim, dim, tile.warpgroups, tile.kv_block, tile.stages, 2, tile.o_panels, false, 1, 1, 0, 0, 0, true};
      for (const Problem& problem : kFp8Problems) all.push_back(&cases.emplace_back(problem, kernel.config()));
    }
    measure(all, device, rounds, seconds);
    fmt::print("\nD {:<16} (TFLOP/s)", dim);
    for (const Problem& problem : kFp8Problems)
      fmt::print("{:>16}", fmt::format("{} {}", problem.mask, problem.length));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const TimedCase& own = cases[i];
      const Tile& tile = kFp8Tiles[i / kFp8Problems.size()];
      if (i % kFp8Problems.size() == 0) {
        fmt::print("\n{:28}", fmt::format("{} x {}, {} stages", 64 * tile.warpgroups, tile.kv_block, tile.stages));
      }
      if (own.seconds.empty()) {
        fmt::print("{:>16}", "-");
      } else {
        fmt::print("{:>16.0f}", flops_of(own) / own.median() * 1e-12);
      }
    }
    fmt::print("\n");
  }
  return 0;
}

int run(int rounds, double seconds, int device, bool dropout, bool fp8) {
  if (const std::string reason = cuda::driver_missing(); !reason.empty()) {
    fmt::print(stderr, "no CUDA device: {}\n", reason);
    return 2;
  }
  if (dropout) return run_dropout(rounds, seconds, device);
  if (fp8) return run_fp8(rounds, seconds, device);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (kernel.spare) continue;
    const std::vector<Variant> variants = variants_of(kernel);
    std::deque<TimedCase> cases;
    std::vector<TimedCase*> all;
    for (const Variant& variant : variants) {
      for (const std::int64_t length : kLengths) {
        TimedCase& added = cases.emplace_back(Problem{"causal", length, kTokens}, variant.config);
        added.order = variant.order;
        all.push_back(&added);
      }
    }
    measure(all, device, rounds, seconds);
    print_kernel(variants, cases);
  }
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  int rounds = 7, device = 0;
  double seconds = 0.005;
  bool dropout = false, fp8 = false;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view argument = argv[i];
    if (argument == "--dropout") {
      dropout = true;
      --i;  // it has no value
    } else if (argument == "--fp8") {
      fp8 = true;
      --i;
    } else if (argument == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[i + 1]));
    } else if (argument == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[i + 1]);
    } else if (argument == "--device" && i + 1 < argc) {
      device = std::atoi(argv[i + 1]);
    } else {
      fmt::print(stderr,
                 "usage: bench_forward_sm90_variants [--rounds N] [--seconds S] [--device I] [--dropout] [--fp8]\n");
      return 2;
    }
  }
  try {
    return heddle::bench::run(rounds, seconds, device, dropout, fp8);
  } catch (const heddle::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
