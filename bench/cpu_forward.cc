// How fast is the CPU forward, and which share of the machine's multiply-adds does it get?
//
//   bench_cpu_forward [--threads N] [--seconds S] [FILTER]
//
// The table shows GFLOP/s over the elements that attend (4 Sq Skv D per head, halved for causal), their ratio to the
// FMA probes beside them, and the speed of whole launches (cpu_windows.h). A first line says what one core reads of
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "cpu_cases.h"
#include "cpu_windows.h"
#include "heddle/heddle.h"

namespace heddle::bench {
namespace {

struct Case {
  std::string name = {};
  DType dtype = DType::f32;
  std::int64_t heads = 2, kv_heads = 2, q_rows = 2048, kv_rows = 2048, dim = 64;
  Expr score_mod = {}, mask_mod = {}, weight_mod = {};
  double attended = 1;  // share of the elements
};

std::vector<Case> cases() {
  const Capture slopes("slopes", DType::f32, 1), bias("bias", DType::f32, 3);
  const double window = 256.0 / 2048 * (1 - 127.5 / 2048);
  std::vector<Case> all = cases_of_each_shape<Case>([&](auto&& add) {
    add("full", {});
    add("causal", {.mask_mod = mods::causal(), .attended = 0.5});
    add("alibi", {.score_mod = mods::alibi(slopes)});
    add("alibi_causal", {.score_mod = mods::alibi(slopes), .mask_mod = mods::causal(), .attended = 0.5});
    add("softcap", {.score_mod = mods::softcap(30)});
    add("window256", {.mask_mod = mods::sliding_window(255), .attended = window});
    const auto add_long = [&](const char* what, const Expr& score_mod, const Expr& weight_mod = {}) {
      add(what, {.q_rows = 4096,
                 .kv_rows = 4096,
                 .score_mod = score_mod,
                 .mask_mod = mods::causal(),
                 .weight_mod = weight_mod,
                 .attended = 0.5});
    };
    add_long("long_causal", {});
    add_long("long_alibi_causal", mods::alibi(slopes));
    add_long("long_softcap_causal", mods::softcap(30));
    add_long("long_bias_causal", leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()));
    add_long("long_dropout_causal", {}, mods::dropout(0.1, 1));
    add("gqa8", {.heads = 8, .kv_heads = 1, .q_rows = 512});
    add("s512", {.heads = 8, .kv_heads = 8, .q_rows = 512, .kv_rows = 512});
    add("short", {.heads = 8, .kv_heads = 8, .q_rows = 128, .kv_rows = 128});
    add("decode", {.heads = 8, .kv_heads = 8, .q_rows = 1, .kv_rows = 8192});
    add("decode_gqa8", {.heads = 32, .kv_heads = 4, .q_rows = 1, .kv_rows = 8192});
  });
  // Further cases for the planner's rates (src/families/cpu/cpu_forward_costs.h).
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t dim : {16, 32, 64, 128, 256}) {
      const std::string full = fmt::format("{}_d{}_full", name(dtype), dim);
      if (std::ranges::find(all, full, &Case::name) != all.end()) continue;
      all.push_back({.name = full, .dtype = dtype, .dim = dim});
    }
  }
  return all;
}

/// GB/s that one core reads of memory that no cache holds.
double read_gigabytes_per_second() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const std::vector<std::uint64_t> words(kBytes / sizeof(std::uint64_t), 1);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double begin = process_seconds();
    std::array<std::uint64_t, 8> sums{};  // a single chain of additions would be slower than memory
    for (std::size_t i = 0; i < words.size(); i += sums.size()) {
      for (std::size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += words[i + lane];
    }
    if (std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}) != words.size()) std::abort();
    best = std::max(best, static_cast<double>(kBytes) * 1e-9 / (process_seconds() - begin));
  }
  return best;
}

void measure(const Case& c, int threads, double seconds) {
  const Tensor q = random_tensor(c.dtype, {1, c.heads, c.q_rows, c.dim}, 1);
  const Tensor k = random_tensor(c.dtype, {1, c.kv_heads, c.kv_rows, c.dim}, 2);
  const Tensor v = random_tensor(c.dtype, {1, c.kv_heads, c.kv_rows, c.dim}, 3);
  const Tensor o = Tensor::empty(c.dtype, {1, c.heads, c.q_rows, c.dim});
  const Tensor slopes = mods::alibi_slopes(c.heads);
  AttentionOptions options;
  options.score_mod = c.score_mod;
  options.mask_mod = c.mask_mod;
  options.weight_mod = c.weight_mod;
  options.threads = threads;
  options.bindings.captures["slopes"] = slopes;
  Tensor bias;
  if (!c.score_mod.empty() && symbols_of(c.score_mod).captures.contains("bias")) {
    bias = random_tensor(DType::f32, {c.heads, c.q_rows, c.kv_rows}, 5);
    options.bindings.captures["bias"] = bias;
  }
  const AttentionTensors tensors = {q, k, v, o, {}};
  const AttentionPlan plan(tensors, options);
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes()});
  plan.run(tensors, {.workspace = workspace.data()});

  const double flops = 4.0 * static_cast<double>(c.heads * c.q_rows * c.kv_rows * c.dim) * c.attended;
  print_line(c.name, measure_windows(flops, seconds, [&] { plan.run(tensors, {.workspace = workspace.data()}); }));
}

int main(int count, char** arguments) {
  const CpuArguments asked = cpu_arguments(count, arguments);
  fmt::print("one core reads {:.1f} GB/s of memory\n", read_gigabytes_per_second());
  measure_cases(asked, cases(), measure);
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int count, char** arguments) { return heddle::bench::main(count, arguments); }
