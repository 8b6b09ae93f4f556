// How fast is the CPU backward, and which share of the machine's multiply-adds does it get?
//
//   bench_cpu_backward [--threads N] [--seconds S] [FILTER]
//
// The table shows GFLOP/s of the five products over the elements that attend (10 Sq Skv D per head, halved for causal),
// their ratio to the FMA probes beside them, and the speed of whole launches (cpu_windows.h).
#include <fmt/format.h>

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
  std::int64_t heads = 2, kv_heads = 2, rows = 2048, dim = 64;
  Expr score_mod = {}, mask_mod = {};
  double attended = 1;  // share of the elements
  std::vector<std::string> captures = {};
};

std::vector<Case> cases() {
  const Capture slopes("slopes", DType::f32, 1), bias("bias", DType::f32, 3);
  const double window = 256.0 / 2048 * (1 - 127.5 / 2048);
  std::vector<Case> all = cases_of_each_shape<Case>([&](auto&& add) {
    add("full", {});
    add("causal", {.mask_mod = mods::causal(), .attended = 0.5});
    add("alibi", {.score_mod = mods::alibi(slopes)});
    add("alibi_slopes", {.score_mod = mods::alibi(slopes), .captures = {"slopes"}});
    add("bias", {.score_mod = leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx())});
    add("bias_gradient",
        {.score_mod = leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()), .captures = {"bias"}});
    add("softcap", {.score_mod = mods::softcap(30)});
    add("window256", {.mask_mod = mods::sliding_window(255), .attended = window});
    add("gqa8", {.heads = 8, .kv_heads = 1, .rows = 512});
    add("short", {.heads = 8, .kv_heads = 8, .rows = 128});
    add("full512", {.heads = 8, .kv_heads = 8, .rows = 512});
    add("causal512", {.heads = 8, .kv_heads = 8, .rows = 512, .mask_mod = mods::causal(), .attended = 0.5});
    add("full8192", {.heads = 1, .kv_heads = 1, .rows = 8192});
    add("causal8192", {.heads = 1, .kv_heads = 1, .rows = 8192, .mask_mod = mods::causal(), .attended = 0.5});
  });
  for (const std::int64_t dim : {16, 32, 96, 256}) {
    all.push_back({.name = fmt::format("f32_d{}_full", dim), .dim = dim});
  }
  for (const std::int64_t dim : {64, 128}) {
    all.push_back({.name = fmt::format("f64_d{}_full", dim), .dtype = DType::f64, .dim = dim});
  }
  return all;
}

void measure(const Case& c, int threads, double seconds) {
  const Dims q_shape = {1, c.heads, c.rows, c.dim}, kv_shape = {1, c.kv_heads, c.rows, c.dim};
  const Tensor q = random_tensor(c.dtype, q_shape, 1), k = random_tensor(c.dtype, kv_shape, 2),
               v = random_tensor(c.dtype, kv_shape, 3), d_o = random_tensor(c.dtype, q_shape, 4);
  const Tensor dq = Tensor::empty(c.dtype, q_shape), dk = Tensor::empty(c.dtype, kv_shape),
               dv = Tensor::empty(c.dtype, kv_shape);
  AttentionOptions options;
  options.score_mod = c.score_mod;
  options.mask_mod = c.mask_mod;
  options.threads = threads;
  const Tensor slopes = mods::alibi_slopes(c.heads), bias = random_tensor(DType::f32, {c.heads, c.rows, c.rows}, 5);
  const Tensor d_slopes = Tensor::empty(DType::f32, slopes.shape()), d_bias = Tensor::empty(DType::f32, bias.shape());
  options.bindings.captures = {{"slopes", slopes}, {"bias", bias}};
  for (const auto& [name, declared] : std::map(options.bindings.captures)) {
    if (c.score_mod.empty() || !symbols_of(c.score_mod).captures.contains(name)) options.bindings.captures.erase(name);
  }
  const AttentionResult forward = attention(q, k, v, options, true);
  BackwardTensors tensors{
      .q = q, .k = k, .v = v, .o = forward.o, .lse = forward.lse, .d_o = d_o, .dq = dq, .dk = dk, .dv = dv};
  for (const std::string& name : c.captures) tensors.d_captures[name] = name == "slopes" ? d_slopes : d_bias;
  const AttentionPlan plan(tensors, options);
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes()});
  plan.run(tensors, {.workspace = workspace.data()});

  const double flops = 10.0 * static_cast<double>(c.heads * c.rows * c.rows * c.dim) * c.attended;
  print_line(c.name, measure_windows(flops, seconds, [&] { plan.run(tensors, {.workspace = workspace.data()}); }));
}

int main(int count, char** arguments) {
  const CpuArguments asked = cpu_arguments(count, arguments);
  measure_cases(asked, cases(), measure);
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int count, char** arguments) { return heddle::bench::main(count, arguments); }
