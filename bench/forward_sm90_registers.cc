// Compares the compiler with the planner: which kernels of the Hopper family each accepts with which mods. The
// planner's register predictor (src/families/forward_sm90/forward_sm90_plans.cc) orders candidates: a kernel that
// spills after all is compiled in vain, and one that does not spill after all stands behind slower ones.
//
//   bench_forward_sm90_registers [NAME...]    those mods only, as "causal"; needs NVRTC, and no GPU
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"

namespace heddle::bench {
namespace {

struct NamedMods {
  std::string name;
  Expr mask{}, score{}, weight{};
};

/// Tokens that agree in `count` tables of ids.
Expr alike_in(int count) {
  Expr mask = mods::causal();
  for (int i = 0; i < count; ++i) mask = mask && mods::documents(Capture(fmt::format("ids{}", i), DType::i32, 1));
  return mask;
}
/// And whose numbers agree when divided by `count` params.
Expr alike_by(int count) {
  Expr mask = mods::causal();
  for (int i = 0; i < count; ++i) {
    const Expr divisor = param(fmt::format("n{}", i), ExprType::i32);
    mask = mask && floor_div(leaf::q_idx(), divisor) == floor_div(leaf::kv_idx(), divisor);
  }
  return mask;
}
/// And that `count` draws leave.
Expr drawn(int count) {
  Expr mask = mods::causal();
  for (int i = 0; i < count; ++i)
    mask = mask && random_uniform(i, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()) > 0.1;
  return mask;
}

std::vector<NamedMods> all_mods() {
  const Capture slopes("slopes", DType::f32, 1), table("table", DType::f32, 2), bias("bias", DType::bf16, 3);
  const Expr biased = leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Expr dropout = mods::dropout(0.1, param("seed", ExprType::i32));
  return {{"none", {}},
          {"causal", mods::causal()},
          {"window", mods::sliding_window(1024)},
          {"1 id", alike_in(1)},
          {"2 ids", alike_in(2)},
          {"4 ids", alike_in(4)},
          {"8 ids", alike_in(8)},
          {"1 quotient", alike_by(1)},
          {"2 quotients", alike_by(2)},
          {"4 quotients", alike_by(4)},
          {"1 draw", drawn(1)},
          {"2 draws", drawn(2)},
          {"tree", mods::tree(Capture("enter", DType::i32, 1), Capture("last", DType::i32, 1))},
          {"relative", {}, leaf::score() + to_f32(leaf::q_idx() - leaf::kv_idx())},
          {"ALiBi", {}, mods::alibi(slopes)},
          {"ALiBi, causal", mods::causal(), mods::alibi(slopes)},
          {"table", {}, mods::relative_bias(table, 128)},
          {"T5", {}, mods::t5_bias(table, 32, 128, true)},
          {"T5, causal", mods::causal(), mods::t5_bias(table, 32, 128, true)},
          {"softcap", {}, mods::softcap(20)},
          {"softcap, causal", mods::causal(), mods::softcap(20)},
          {"bias", {}, biased},
          {"dropout", {}, {}, dropout},
          {"bias, dropout", mods::causal(), biased, dropout}};
}

void print_mods(const plan::ForwardSm90Kernel& kernel, const NamedMods& named, int& surprises) {
  problem::AttentionProblem problem;
  problem.batch = problem.q_heads = problem.kv_heads = 1;
  problem.q_rows = problem.kv_rows = 8192;
  problem.sequences.resize(1);
  problem.sequences[0].q_len = problem.sequences[0].kv_len = 8192;
  problem.scale = 1;
  problem.mask_mod = named.mask;
  problem.score_mod = named.score;
  problem.weight_mod = named.weight;
  const plan::KernelMods mods = plan::kernel_mods(problem);
  shared::ForwardSm90Config config = plan::config_with(kernel.config(), mods);
  config.lse = true;
  const int expected = plan::forward_sm90_registers(config, mods);
  std::string found = "accepted";
  double milliseconds = 0;
  try {
    milliseconds = cuda::jit::build(forward_sm90::source(config, mods, device_text::layout_of(mods.all())))->compile_ms;
  } catch (const cuda::jit::Rejected& rejected) {
    found = std::string(rejected.what()).substr(0, std::string(rejected.what()).find('\n'));
  }
  const bool surprise = (found == "accepted") != (expected <= config.consumer_registers());
  surprises += surprise ? 1 : 0;
  fmt::print("D {:<7} {} x {:<3} {:16} expected {:3} of {}  {:5.0f} ms  {}{}\n", plan::to_string(plan::dims_of(kernel)),
             config.rows(), kernel.kv_block, named.name, expected, config.consumer_registers(), milliseconds, found,
             surprise ? "   (unexpected)" : "");
  std::fflush(stdout);
}

/// The mods whose names contain one of `parts`; all, where there is none.
int run(const std::vector<std::string>& parts) {
  int surprises = 0;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const NamedMods& named : all_mods()) {
      const auto in_name = [&](const std::string& part) { return named.name.find(part) != std::string::npos; };
      if (parts.empty() || std::ranges::any_of(parts, in_name)) print_mods(kernel, named, surprises);
    }
  }
  fmt::print("{} not as expected\n", surprises);
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int count, char** arguments) {
  try {
    return heddle::bench::run({arguments + 1, arguments + count});
  } catch (const heddle::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
