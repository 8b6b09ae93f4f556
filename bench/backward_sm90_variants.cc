// Checks each variant of the Hopper backward's configuration against the reference on a small problem, then times it on
// the grid of bench/compare.py, full and causal, beside the planner's own.
//
//   bench_backward_sm90_variants [--dim D,D/V,...] [--lengths N,...] [--only NAME,...] [--times N] [--device I]
//   [--tokens N] [--columns N] [--group N] [--check-only]
//
// The grid has 16384 tokens of all sequences and 2048 columns of all query heads, or as many as asked for, and a KV
// head for each query head or for a group of them.
// Prints TFLOP/s of all kernels of a run (5 products; causal counts half), or why a variant cannot run. Exits 1 if a
// variant's gradients fail the criterion of heddle/check.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "backward_runs.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "families/backward_sm90/tile_shares.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "gpu_timer.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::bench {
namespace {

std::string text_of(const HeadDims& dims) {
  return dims.qk == dims.v ? fmt::format("{}", dims.qk) : fmt::format("{}/{}", dims.qk, dims.v);
}

struct Variant {
  std::string name;
  std::function<void(shared::BackwardSm90Config&)> change;  // of the planner's configuration
};

/// The first is the planner's.
std::vector<Variant> variants_of(const shared::BackwardSm90Config& planned) {
  std::vector<Variant> variants = {{"planned", [](shared::BackwardSm90Config&) {}}};
  const auto add = [&](const std::string& name, const auto& change) {
    shared::BackwardSm90Config config = planned;
    change(config);
    const bool fits = shared::backward_shared_bytes(config) <= plan::kSm90SharedMemory;
    if (fits && !(config == planned)) variants.push_back({name, change});
  };
  add("late numbers", [](auto& config) { config.early_numbers = false; });
  // In a narrow kernel two would wait for each other.
  add("2 stages of Q", [](auto& config) {
    if (config.wide) config.q_stages = 2;
  });
  add("1 stage of dO", [](auto& config) {
    if (!config.wide) return;
    config.d_o_stages = 1;
    config.d_o_halves = config.d_q_added = false;
  });
  add("1 stage of dO and dq added", [](auto& config) {
    if (!config.wide) return;
    config.d_o_stages = 1;
    config.d_o_halves = false;
    config.d_q_added = config.d_q;
  });
  add("own loads", [](auto& config) { config.shared_loads = false; });
  add("shared loads", [](auto& config) { config.shared_loads = config.wide; });
  add("shared loads, dq added", [](auto& config) {
    config.shared_loads = config.wide;
    config.d_q_added = config.wide && config.d_q;
  });
  add("dq added", [](auto& config) { config.d_q_added = config.wide && config.d_q; });
  add("dq added and 3 stages of Q", [](auto& config) {
    config.d_q_added = config.wide && config.d_q;
    config.q_stages = 3;
  });
  add("4 stages of Q", [](auto& config) {
    config.q_stages = 4;
    if (!config.d_o_halves) config.d_o_stages = 2;
  });
  add("2 stages of dO", [](auto& config) {
    if (!config.d_o_halves) config.d_o_stages = 2;
  });
  add("no dq", [](auto& config) {
    if (!config.d_q_apart) config.d_q = false;
  });
  if (planned.d_q && !planned.wide) {  // the length decides which the planner takes
    variants.push_back({"ring of dq", [](auto& config) { config.ring = true; }});
    variants.push_back({"no ring", [](auto& config) { config.ring = false; }});
  }
  variants.push_back({"whole tiles", [](auto& config) { config.shares = false; }});
  if (planned.d_q_apart) {  // dQ by the warpgroups that have the keys
    add("dq by all", [](auto& config) {
      config.d_q_apart = config.held = config.ring = false;
      config.q_stages = config.d_o_stages = 3;
    });
  }
  for (const shared::BackwardSm90Config& apart : plan::with_d_q_apart(planned)) {
    add(fmt::format("dq apart{}{}", apart.held ? "" : " in memory", apart.early_numbers ? "" : " late"),
        [=](auto& config) {
          config.d_q_apart = true;
          config.held = apart.held;
          config.early_numbers = apart.early_numbers;
          config.q_stages = config.d_o_stages = apart.q_stages;
        });
  }
  return variants;
}

/// A variant's list of tiles decides the grid and the workspace: rings of dQ's sums and shared tiles have tiles of
/// their own.
void set_list(const Memory& memory, const shared::BackwardSm90Config& config, plan::Choice& choice) {
  const problem::AttentionProblem problem = problem::validate(memory.tensors(), memory.options);
  const plan::BackwardSm90Schedule schedule =
      plan::backward_sm90_schedule(problem, config, choice.block_mask.get(), choice.plan.multiprocessors);
  const auto tiles = static_cast<int>(schedule.items.size());
  choice.plan.grid = config.draws() ? std::min(tiles, choice.plan.multiprocessors) : tiles * config.tile_ctas();
  choice.plan.workspace_bytes = plan::backward_sm90_workspace(problem, config).bytes +
                                plan::tile_shares_memory(config, schedule.share_places).bytes;
}

/// A variant, ready to run.
class Runner {
 public:
  Runner(const Memory& memory, const Variant& variant)
      : runs_(memory.options, tensors_for(memory, variant), [&](std::vector<plan::Choice>& choices) -> plan::Choice& {
          plan::Plan& plan = choices.front().plan;
          if (!plan.has<shared::BackwardSm90Config>())
            throw Error(ErrorCode::internal, "the planner offers no kernel of the family");
          config = plan.part<shared::BackwardSm90Config>();
          variant.change(config);
          plan.family_part = config;
          set_list(memory, config, choices.front());
          return choices.front();
        }) {}
  void operator()(void* stream) const { runs_(stream); }
  const BackwardTensors& tensors() const { return runs_.tensors(); }
  shared::BackwardSm90Config config;

 private:
  static BackwardTensors tensors_for(const Memory& memory, const Variant& variant) {
    BackwardTensors tensors = memory.tensors();
    shared::BackwardSm90Config config;
    config.d_q = true;
    variant.change(config);
    if (!config.d_q) tensors.dq.reset();
    return tensors;
  }

  BackwardRuns runs_;
};

/// Checks gradients of a small problem with ragged ends. Empty where the criterion is met. CTAs that draw get more
/// tiles than there are multiprocessors.
std::string check(const Variant& variant, const HeadDims& dims, const Device& gpu, GpuTimer& timer) {
  const Memory memory(1, dims.qk <= 64 ? 60 : 2, 400, dims, true, gpu);
  const Runner runner(memory, variant);
  timer.seconds(1, [&] { runner(timer.stream()); });
  const GradientReport report = check_backward(runner.tensors(), memory.options);
  return report.passed ? std::string() : report.text();
}

struct Arguments {
  std::vector<HeadDims> dims = {{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
  std::vector<std::int64_t> lengths = {512, 2048, 8192, 16384};
  std::int64_t tokens = 16384, columns = 2048, group = 1;
  int times = 4, device = 0;
  bool check_only = false;
  std::vector<std::string> only;  // names of variants; none: all
};

std::vector<HeadDims> dims_of(std::string_view text) {
  std::vector<HeadDims> dims;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string one(text.substr(at, end - at));
    const std::size_t slash = one.find('/');
    const std::int64_t qk = std::atoll(one.c_str());
    dims.push_back({qk, slash == std::string::npos ? qk : std::atoll(one.c_str() + slash + 1)});
    at = end + 1;
  }
  return dims;
}

/// "planned,dq apart"
std::vector<std::string> names_of(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    names.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

Arguments parse(int count, char** words) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const std::string_view value = i + 1 < count ? words[i + 1] : "";
    if (word == "--check-only") {
      arguments.check_only = true;
      continue;
    }
    if (word == "--dim") arguments.dims = dims_of(value);
    if (word == "--lengths") arguments.lengths = numbers_of(value);
    if (word == "--only") arguments.only = names_of(value);
    if (word == "--tokens") arguments.tokens = std::atoll(words[i + 1]);
    if (word == "--columns") arguments.columns = std::atoll(words[i + 1]);
    if (word == "--group") arguments.group = std::atoll(words[i + 1]);
    if (word == "--times") arguments.times = std::atoi(words[i + 1]);
    if (word == "--device") arguments.device = std::atoi(words[i + 1]);
    ++i;
  }
  return arguments;
}

/// Seconds of a run of each: the median of rounds that go forwards and backwards through them, so that none has the
/// warmer chip. A runner may be missing; its time is 0.
std::vector<double> times_of(const std::vector<std::unique_ptr<Runner>>& runners, int times, GpuTimer& timer) {
  constexpr int kRounds = 5;
  std::vector<std::array<double, kRounds>> rounds(runners.size());
  for (int round = -1; round < kRounds; ++round) {  // the first is no sample
    for (std::size_t i = 0; i < runners.size(); ++i) {
      const std::size_t of = round % 2 == 0 ? i : runners.size() - 1 - i;
      if (runners[of] == nullptr) continue;
      const double seconds = timer.seconds(round < 0 ? 1 : times, [&] { (*runners[of])(timer.stream()); });
      if (round >= 0) rounds[of][static_cast<std::size_t>(round)] = seconds;
    }
  }
  std::vector<double> medians;
  for (auto& of_one : rounds) {
    std::ranges::sort(of_one);
    medians.push_back(of_one[kRounds / 2]);
  }
  return medians;
}

void time_cell(const std::vector<Variant>& variants, const Memory& memory, double flops, int times, GpuTimer& timer) {
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<std::string> reasons;
  for (const Variant& variant : variants) {
    reasons.emplace_back();
    try {
      runners.push_back(std::make_unique<Runner>(memory, variant));
    } catch (const Error& error) {
      runners.push_back(nullptr);
      reasons.back() = std::string(error.what()).substr(0, 80);
    }
  }
  const std::vector<double> seconds = times_of(runners, times, timer);
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (runners[i] == nullptr) {
      fmt::print("  {}: {}", variants[i].name, reasons[i]);
    } else {
      fmt::print("  {} {:.3f} ms {:.0f}", variants[i].name, 1e3 * seconds[i], 1e-12 * flops / seconds[i]);
    }
  }
}

void time_variants(const std::vector<Variant>& variants, const HeadDims& dims, const Arguments& arguments,
                   const Device& gpu, GpuTimer& timer) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : arguments.lengths) {
      const std::int64_t heads = arguments.columns / dims.qk, batch = arguments.tokens / length;
      const Memory memory(batch, heads, length, dims, causal, gpu, DType::bf16, false, arguments.group);
      fmt::print("D {} {} {}:", text_of(dims), causal ? "causal" : "full", length);
      const std::int64_t of_pair = 2 * heads * (3 * dims.qk + 2 * dims.v);
      const double flops = static_cast<double>(batch * length * length * of_pair) * (causal ? 0.5 : 1);
      time_cell(variants, memory, flops, arguments.times, timer);
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
}

int run(const Arguments& arguments) {
  if (const std::string reason = cuda::driver_missing(); !reason.empty()) {
    fmt::print(stderr, "no CUDA device: {}\n", reason);
    return 2;
  }
  const Device gpu{DeviceKind::cuda, arguments.device};
  GpuTimer timer(arguments.device);
  bool right = true;
  for (const HeadDims& dims : arguments.dims) {
    const Memory small(1, 2, 400, dims, true, gpu);
    std::vector<Variant> good;
    for (const Variant& variant : variants_of(Runner(small, {"planned", [](auto&) {}}).config)) {
      if (!arguments.only.empty() && std::ranges::find(arguments.only, variant.name) == arguments.only.end()) continue;
      std::string wrong;
      try {
        wrong = check(variant, dims, gpu, timer);
      } catch (const Error& error) {
        fmt::print("D {} {}: {}\n", text_of(dims), variant.name, error.what());
        continue;
      }
      fmt::print("D {} {}: {}\n", text_of(dims), variant.name,
                 wrong.empty() ? "within the criterion" : "WRONG\n" + wrong);
      right = right && wrong.empty();
      if (wrong.empty()) good.push_back(variant);
    }
    if (!arguments.check_only) time_variants(good, dims, arguments, gpu, timer);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace heddle::bench

int main(int count, char** words) {
  ::setenv("HEDDLE_FAMILY", "backward_sm90", 1);  // whatever else the planner has
  return heddle::bench::run(heddle::bench::parse(count, words));
}
