// Kernels of backward_sm90: forms of scores, masks, weights and normalizers, types, head dims, sequences. All are to be
// accepted: no spills, no serialised products, addresses in uniform registers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/backward_sequences.h"
#include "families/backward_sm90/backward_reads_text.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/backward_sm90_arguments.h"
#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "heddle/mods.h"
#include "kernels/cuda/compile_table.h"
#include "kernels/cuda/table_sample.h"
#include "plan/hopper/sm90_chip.h"
#include "sample.h"

namespace heddle::cuda {
namespace {

class BackwardCompileTable : public CompileTable {};

problem::AttentionProblem problem_of(const Expr& mask, const Expr& score, const Expr& weight, Normalizer normalizer) {
  problem::AttentionProblem problem;
  problem.pass = problem::Pass::backward;
  problem.normalizer = normalizer;
  problem.q_dtype = problem.k_dtype = problem.v_dtype = problem.o_dtype = DType::bf16;
  problem.batch = problem.q_heads = problem.kv_heads = 1;
  problem.q_rows = problem.kv_rows = 2048;
  problem.qk_dim = problem.v_dim = 128;
  problem.sequences = {{.q_len = 2048, .kv_len = 2048}};
  problem.scale = 1;
  problem.wanted.q = problem.wanted.k = problem.wanted.v = true;
  problem.mask_mod = mask;
  problem.score_mod = score;
  problem.weight_mod = weight;
  return problem;
}

struct Case {
  std::string name;
  Expr mask{}, score{}, weight{};
  Normalizer normalizer = Normalizer::softmax;
  int qk_dim = 128, v_dim = 128;
  bool f16 = false, by_sequence = false, d_q = true, wide = true, device_lengths = false, ordered = false,
       lse_rest = false;
  bool ring = false;  // dQ's sums must be one where the planner takes one; else there may be no registers for it
};

problem::AttentionProblem problem_of(const Case& at) {
  problem::AttentionProblem problem = problem_of(at.mask, at.score, at.weight, at.normalizer);
  problem.qk_dim = at.qk_dim;
  problem.v_dim = at.v_dim;
  if (at.f16) problem.q_dtype = problem.k_dtype = problem.v_dtype = problem.o_dtype = DType::f16;
  problem.wanted.q = at.d_q;
  problem.with_lse_rest = at.lse_rest;
  return problem;
}
shared::BackwardSm90Config config_of(const Case& at, const problem::AttentionProblem& problem,
                                     const plan::BackwardMods& mods) {
  shared::BackwardSm90Config config = plan::backward_sm90_config(problem, mods);
  config.by_sequence = at.by_sequence || at.device_lengths;
  config.device_lengths = at.device_lengths;
  config.ordered = at.ordered;
  config.ring = config.ring && !config.ordered && !config.device_lengths;
  config.vectorised_gradients = config.vectorised_d_q = at.wide;
  return config;
}

void expect_accepted(const Case& at) {
  SCOPED_TRACE(at.name);
  const problem::AttentionProblem problem = problem_of(at);
  const plan::BackwardMods mods = plan::backward_sm90_mods(problem);
  shared::BackwardSm90Config config = config_of(at, problem, mods);
  const auto source_of = [&] { return backward_sm90::main_source(config, mods, device_text::layout_of(mods.all())); };
  EXPECT_LE(shared::backward_shared_bytes(config), plan::kSm90SharedMemory);
  if (!in_sample(source_of())) return;
  try {
    std::shared_ptr<const jit::Cubin> cubin;
    // A third instance of weigh() takes two kernels the registers that they would have: plans have other choices.
    for (int choice = at.lse_rest ? 0 : 2; cubin == nullptr; ++choice) {
      try {
        cubin = jit::build(source_of());
      } catch (const jit::Rejected&) {
        if (config.ring && !at.ring) {
          fmt::print("{}: no ring\n", at.name);
          config.ring = false;
          --choice;
          continue;
        }
        if (choice == 2) throw;
        fmt::print("{}: {}\n", at.name, choice == 0 ? "numbers where they stand" : "frugal");
        config.early_numbers = false;
        config.frugal = choice == 1;
      }
    }
    EXPECT_LE(cubin->spill_bytes, source_of().bearable_spill_bytes);
    const int moves = moves_to_uniform_registers(cubin->bytes);
    fmt::print("{}: {} registers, {} moves to uniform ones, {:.0f} ms\n", at.name, cubin->registers, moves,
               cubin->compile_ms);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

/// A warpgroup of its own computes dQ. `choice`: the first of the kernels that is accepted.
void expect_apart_accepted(Case at, int choice) {
  at.qk_dim = at.v_dim = std::min(at.qk_dim, 64);
  SCOPED_TRACE(at.name);
  const problem::AttentionProblem problem = problem_of(at);
  const plan::BackwardMods mods = plan::backward_sm90_mods(problem);
  const auto source_of = [&](const shared::BackwardSm90Config& config) {
    return backward_sm90::main_source(config, mods, device_text::layout_of(mods.all()));
  };
  shared::BackwardSm90Config without = config_of(at, problem, mods);
  EXPECT_TRUE(without.ring || !at.ring);
  without.ring = at.ring;
  const std::vector<shared::BackwardSm90Config> configs = plan::with_d_q_apart(without);
  ASSERT_LT(choice, std::ssize(configs));
  for (const shared::BackwardSm90Config& config : configs) {
    EXPECT_LE(shared::backward_shared_bytes(config), plan::kSm90SharedMemory);
  }
  if (!in_sample(source_of(configs[static_cast<std::size_t>(choice)]))) return;
  for (int i = 0; i <= choice; ++i) {
    try {
      const std::shared_ptr<const jit::Cubin> cubin = jit::build(source_of(configs[static_cast<std::size_t>(i)]));
      EXPECT_EQ(i, choice) << "an earlier one is accepted";
      EXPECT_EQ(cubin->spill_bytes, 0);
      fmt::print("{}, dq apart: choice {}, {} moves to uniform registers, {:.0f} ms\n", at.name, i,
                 moves_to_uniform_registers(cubin->bytes), cubin->compile_ms);
      return;
    } catch (const jit::Rejected& rejected) {
      if (i == choice) ADD_FAILURE() << rejected.what();
    }
  }
}

TEST_F(BackwardCompileTable, DqApart) {
  expect_apart_accepted({.name = "plain"}, 0);
  expect_apart_accepted({.name = "D 40", .qk_dim = 40, .wide = false}, 0);
  expect_apart_accepted({.name = "f16", .f16 = true}, 0);
  expect_apart_accepted({.name = "device lengths", .device_lengths = true}, 0);
  expect_apart_accepted({.name = "ordered", .ordered = true}, 0);
  expect_apart_accepted({.name = "ordered, device lengths", .device_lengths = true, .ordered = true}, 0);
  expect_apart_accepted({.name = "lse rest", .lse_rest = true}, 0);
  expect_apart_accepted({.name = "causal", .mask = mods::causal()}, 0);
  expect_apart_accepted({.name = "window", .mask = mods::sliding_window(1024)}, 0);
  expect_apart_accepted({.name = "causal, by sequence", .mask = mods::causal(), .by_sequence = true}, 0);
  expect_apart_accepted({.name = "causal, lse rest", .mask = mods::causal(), .lse_rest = true}, 0);
  expect_apart_accepted(
      {.name = "ALiBi, causal", .mask = mods::causal(), .score = mods::alibi(Capture("slopes", DType::f32, 1))}, 0);
  expect_apart_accepted({.name = "dropout", .weight = mods::dropout(0.1, param("seed", ExprType::i32))}, 0);
  expect_apart_accepted({.name = "sigmoid", .normalizer = Normalizer::sigmoid}, 0);
  expect_apart_accepted({.name = "none", .normalizer = Normalizer::none}, 0);
  // A mapped score has one choice less.
  expect_apart_accepted({.name = "softcap", .score = mods::softcap(20)}, 0);
  expect_apart_accepted({.name = "softcap, causal", .mask = mods::causal(), .score = mods::softcap(20)}, 0);
  expect_apart_accepted(
      {.name = "bias", .score = leaf::score() + Capture("bias", DType::f32, 2)(leaf::q_idx(), leaf::kv_idx())}, 2);
}

TEST_F(BackwardCompileTable, PlainKernels) {
  expect_accepted({.name = "D 128"});
  expect_accepted({.name = "D 64", .qk_dim = 64, .v_dim = 64});
  expect_accepted({.name = "D 128 f16", .f16 = true});
  expect_accepted({.name = "D 128, no dq", .d_q = false});
  expect_accepted({.name = "D 64, no dq", .qk_dim = 64, .v_dim = 64, .d_q = false});
  expect_accepted({.name = "D 128, gradients in pairs", .wide = false});
  expect_accepted({.name = "D 64, gradients in pairs", .qk_dim = 64, .v_dim = 64, .wide = false});
  expect_accepted({.name = "D 40 / 100", .qk_dim = 40, .v_dim = 100, .wide = false});
  expect_accepted({.name = "D 128, by sequence", .by_sequence = true});
  expect_accepted({.name = "D 128, device lengths", .device_lengths = true});
  expect_accepted({.name = "D 128, ordered", .ordered = true});
  expect_accepted({.name = "D 128, ordered, device lengths", .device_lengths = true, .ordered = true});
  expect_accepted({.name = "D 64, ordered", .qk_dim = 64, .v_dim = 64, .ordered = true});
  expect_accepted({.name = "D 64, device lengths", .qk_dim = 64, .v_dim = 64, .device_lengths = true});
}

// Most calls are such, and have the registers for a ring of dQ's sums.
TEST_F(BackwardCompileTable, Ring) {
  EXPECT_TRUE(plan::backward_sm90_config(problem_of(Case{}), {}).ring);
  expect_accepted({.name = "ring", .ring = true});
  expect_accepted({.name = "ring, f16", .f16 = true, .ring = true});
  expect_accepted({.name = "ring, by sequence", .by_sequence = true, .ring = true});
  expect_accepted({.name = "ring, causal", .mask = mods::causal(), .ring = true});
  expect_accepted({.name = "ring, causal, by sequence", .mask = mods::causal(), .by_sequence = true, .ring = true});
  expect_accepted({.name = "ring, window", .mask = mods::sliding_window(1024), .ring = true});
  expect_accepted({.name = "ring, lse rest", .lse_rest = true, .ring = true});
  expect_accepted({.name = "ring, causal, lse rest", .mask = mods::causal(), .lse_rest = true, .ring = true});
  expect_apart_accepted({.name = "ring", .ring = true}, 0);
  expect_apart_accepted({.name = "ring, by sequence", .by_sequence = true, .ring = true}, 0);
  expect_apart_accepted({.name = "ring, causal", .mask = mods::causal(), .ring = true}, 0);
  expect_apart_accepted({.name = "ring, window", .mask = mods::sliding_window(1024), .ring = true}, 0);
  expect_apart_accepted({.name = "ring, causal, lse rest", .mask = mods::causal(), .lse_rest = true, .ring = true}, 0);
}

TEST_F(BackwardCompileTable, PlacedKernels) {
  const Capture slopes("slopes", DType::f32, 1), ids("ids", DType::i32, 1);
  const auto placed = [](const Expr& mod) {
    return mods::by_granules(mod, Capture("q_granules", DType::i32, 1), Capture("kv_granules", DType::i32, 1));
  };
  const Expr causal = placed(mods::causal()), dropout = placed(mods::dropout(0.1, param("seed", ExprType::i32)));
  for (const int dim : {64, 128, 256}) {
    const auto accepted = [&](Case at, int choice = 0) {
      at.qk_dim = at.v_dim = dim;
      at.name = fmt::format("D {} in granules, {}", dim, at.name);
      expect_accepted(at);
      if (dim == 64) expect_apart_accepted(at, choice);
    };
    accepted({.name = "causal", .mask = causal});
    accepted({.name = "documents", .mask = placed(mods::documents(ids))});
    accepted({.name = "alibi, causal", .mask = causal, .score = placed(mods::alibi(slopes))}, 1);
    accepted({.name = "softcap, causal", .mask = causal, .score = placed(mods::softcap(20))});
    accepted({.name = "dropout, causal", .mask = causal, .weight = dropout});
  }
}

TEST_F(BackwardCompileTable, WideKernels) {
  for (const auto& [qk, v] :
       {std::pair(256, 256), std::pair(192, 192), std::pair(192, 128), std::pair(136, 40), std::pair(64, 256)}) {
    const auto accepted = [&](Case at) {
      at.qk_dim = qk, at.v_dim = v;
      at.name = fmt::format("D {} / {}, {}", qk, v, at.name);
      expect_accepted(at);
    };
    accepted({.name = "plain"});
    accepted({.name = "f16, device lengths", .f16 = true, .device_lengths = true});
    accepted({.name = "no dq", .d_q = false});
    accepted({.name = "gradients in pairs", .wide = false});
  }
}

TEST_F(BackwardCompileTable, Mods) {
  for (const auto& [qk, v] : {std::pair(64, 64), std::pair(128, 128), std::pair(192, 128), std::pair(256, 256)}) {
    const auto accepted = [&](Case at) {
      at.qk_dim = qk, at.v_dim = v;
      at.name = fmt::format("D {} / {}, {}", qk, v, at.name);
      expect_accepted(at);
    };
    accepted({.name = "causal", .mask = mods::causal()});
    accepted({.name = "window", .mask = mods::sliding_window(1024)});
    accepted({.name = "softcap", .score = mods::softcap(20)});
    accepted({.name = "softcap, causal", .mask = mods::causal(), .score = mods::softcap(20)});
    accepted({.name = "ALiBi", .score = mods::alibi(Capture("slopes", DType::f32, 1))});
    accepted({.name = "dropout", .weight = mods::dropout(0.1, param("seed", ExprType::i32))});
    accepted({.name = "sigmoid", .normalizer = Normalizer::sigmoid});
    accepted({.name = "none", .normalizer = Normalizer::none});
  }
}

// Steps whose rows are far take a third instance of weigh().
TEST_F(BackwardCompileTable, LseRest) {
  for (const auto& [qk, v] : {std::pair(64, 64), std::pair(128, 128), std::pair(192, 128), std::pair(256, 256)}) {
    const auto accepted = [&](Case at) {
      at.qk_dim = qk, at.v_dim = v;
      at.lse_rest = true;
      at.name = fmt::format("lse rest, D {} / {}, {}", qk, v, at.name);
      expect_accepted(at);
    };
    accepted({.name = "plain"});
    accepted({.name = "f16", .f16 = true});
    accepted({.name = "no dq", .d_q = false});
    accepted({.name = "device lengths", .device_lengths = true});
    if (qk <= 128) accepted({.name = "ordered", .ordered = true});
    accepted({.name = "causal", .mask = mods::causal()});
    accepted({.name = "window", .mask = mods::sliding_window(1024)});
    accepted({.name = "softcap, causal", .mask = mods::causal(), .score = mods::softcap(20)});
    accepted({.name = "ALiBi", .score = mods::alibi(Capture("slopes", DType::f32, 1))});
    accepted({.name = "bias", .score = leaf::score() + Capture("bias", DType::f32, 2)(leaf::q_idx(), leaf::kv_idx())});
    accepted({.name = "dropout", .weight = mods::dropout(0.1, param("seed", ExprType::i32))});
  }
}

/// Kernels that sum gradients of captures and params, of one kind each and of several.
void expect_reads_accepted(const std::string& score, const std::vector<std::pair<std::string, Dims>>& captures,
                           const std::vector<shared::ReadKind>& kinds, bool deterministic = false,
                           const std::string& weight = {}) {
  for (const int dim : {64, 128}) {
    SCOPED_TRACE(fmt::format("D {}, {}", dim, score));
    problem::AttentionProblem problem = problem_of(mods::causal(), {}, {}, Normalizer::softmax);
    problem.qk_dim = problem.v_dim = dim;
    problem.batch = problem.q_heads = problem.kv_heads = 2;
    problem.sequences.push_back(problem.sequences.front());
    problem.deterministic = deterministic;
    Symbols symbols;
    Bindings bindings;
    for (const auto& [name, shape] : captures) {
      symbols.captures[name] = {DType::f32, shape.size()};
      bindings.captures[name] = ConstTensorView(nullptr, DType::f32, shape);
      problem.wanted.captures.push_back(name);
    }
    problem.score_mod = parse(score, symbols);
    if (!weight.empty()) problem.weight_mod = parse(weight, symbols);
    const plan::BackwardMods mods = plan::backward_mods(problem);
    const plan::BackwardReads reads = plan::backward_reads(problem, bindings, mods.kv_start);
    std::vector<shared::ReadKind> found;
    for (const plan::BackwardRead& read : reads.reads) found.push_back(read.kind);
    EXPECT_EQ(found, kinds);
    static std::uint64_t number = 0;
    if (!test::is_kernel_drawn(number++, 12)) continue;  // each compiles two kernels
    problem.with_lse_rest = deterministic || captures.size() > 1;
    const shared::BackwardSm90Config config = plan::reads_config(plan::backward_sm90_config(problem, mods), reads);
    const std::vector<shared::StorageType> types(reads.sums.size(), shared::StorageType::bf16);
    const device_text::ModLayout layout = backward_sm90::backward_layout(mods, reads);
    try {
      const auto sums = jit::build(backward_sm90::sums_source(config, reads, types, layout));
      EXPECT_EQ(sums->spill_bytes, 0);
      fmt::print("D {}, {}: around {} registers, {:.0f} ms", dim, score, sums->registers, sums->compile_ms);
      if (reads.visits_pairs()) {
        const auto pass = jit::build(backward_sm90::reads_source(config, mods, reads, types, layout));
        EXPECT_LE(pass->spill_bytes, config.lse_rest ? 32 : 0);  // stores and loads of 16 bytes
        fmt::print("; pass {} registers, {:.0f} ms", pass->registers, pass->compile_ms);
      }
      fmt::print("\n");
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST_F(BackwardCompileTable, Reads) {
  using enum shared::ReadKind;
  expect_reads_accepted("score + slopes[h] * (kv_idx - q_idx)", {{"slopes", {2}}}, {columns});
  expect_reads_accepted("score * x[kv_idx]", {{"x", {8192}}}, {columns});
  expect_reads_accepted("score + x[q_idx]", {{"x", {8192}}}, {closed});
  expect_reads_accepted("score * x[q_idx]", {{"x", {8192}}}, {rows});
  expect_reads_accepted("score + table[h, kv_idx - q_idx + 8191]", {{"table", {2, 16383}}}, {diagonals});
  expect_reads_accepted("score + x[b, h, q_idx, kv_idx]", {{"x", {2, 2, 8192, 8192}}}, {stored});
  expect_reads_accepted("score + x[h, q_idx, kv_idx]", {{"x", {2, 8192, 8192}}}, {added});
  expect_reads_accepted("score + x[h, q_idx, kv_idx]", {{"x", {2, 8192, 8192}}}, {owned}, true);
  expect_reads_accepted("20 * tanh((score + slopes[h] * (kv_idx - q_idx)) / 20)", {{"slopes", {2}}}, {columns});
  expect_reads_accepted("score * x[kv_idx]", {{"w", {8192}}, {"x", {8192}}}, {columns, columns}, false, "w[kv_idx]");
  expect_reads_accepted("score * x[kv_idx]", {{"x", {8192}}}, {columns}, false,
                        "where(random_uniform(7, b, h, q_idx, kv_idx) >= 0.1, 1.25, 0.0)");
  expect_reads_accepted("(score + x[q_idx] * y[kv_idx]) * z[h] + table[h, kv_idx - q_idx + 8191]",
                        {{"table", {2, 16383}}, {"x", {8192}}, {"y", {8192}}, {"z", {2}}},
                        {diagonals, rows, columns, columns});
}

TEST_F(BackwardCompileTable, ListKernels) {
  const auto cubin = jit::build(gpu::cuda_dialect().source("backward_lists", gpu::kBackwardListsText, "sm_90a"));
  EXPECT_EQ(cubin->spill_bytes, 0);
  fmt::print("lists: {} registers, {:.0f} ms\n", cubin->registers, cubin->compile_ms);
}

TEST_F(BackwardCompileTable, RowKernels) {
  using shared::StorageType;
  for (const StorageType type :
       {StorageType::same, StorageType::f32, StorageType::f64, StorageType::e4m3, StorageType::e5m2}) {
    const problem::AttentionProblem problem = problem_of({}, {}, {}, Normalizer::softmax);
    shared::BackwardSm90Config config = plan::backward_sm90_config(problem, plan::backward_mods(problem));
    config.o_type = config.d_q_type = type;
    config.vectorised_rows = config.vectorised_d_q = type == StorageType::same;
    config.sinks = true;
    config.lse_rest = type == StorageType::same || type == StorageType::f32;
    const auto cubin = jit::build(backward_sm90::rows_source(config));
    EXPECT_EQ(cubin->spill_bytes, 0);
    fmt::print("rows, o {}: {} registers, {:.0f} ms\n", name(type), cubin->registers, cubin->compile_ms);
  }
}

}  // namespace
}  // namespace heddle::cuda
