// Kernels of the portable family as the planner would have them on an A100, RTX 3090, 4090, 5090 and, by
// HEDDLE_FAMILY, an H200: by NVRTC for each chip, without spills, within the shared memory that the chip lends a CTA.
// Each problem has at least one accepted candidate; without mods that read, the first candidate is accepted. By default
// each chip compiles a part of the problems; HEDDLE_TEST_FULL compiles all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "backend/portable/portable_config.h"
#include "backend/portable/portable_refuses.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "device/known_gpus.h"
#include "families/forward_mma/forward_mma.h"
#include "heddle/mods.h"
#include "kernels/cuda/own_kernels.h"
#include "sample.h"
#include "scoped_environment.h"

namespace heddle::cuda {
namespace {

struct Case {
  std::string name;
  std::int64_t qk_dim = 128, v_dim = 128, queries = 4096, group = 1, page_rows = 0;
  bool listed_pages = false;
  DType dtype = DType::bf16;
  Expr mask{}, score{}, weight{};
  Normalizer normalizer = Normalizer::softmax;
  bool sinks = false, packed = false;
  DType o_dtype = DType::bf16;      // f64: o is
  std::optional<DType> kv_dtype{};  // of keys and values, where they have 8 bits
  bool first = true;                // the planner's first choice is to be accepted
  bool placed = false;              // mods read positions by granules
};

std::vector<Case> cases() {
  const Expr bias = leaf::score() + Capture("bias", DType::f16, 4)(leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Expr alibi = mods::alibi(Capture("slopes", DType::f32, 1));
  const Expr document = mods::documents(Capture("document", DType::i32, 1));
  const Expr softcap = 20.0 * tanh(leaf::score() / 20.0);
  const Expr dropout = mods::dropout(0.1, 7);
  std::vector<Case> all;
  for (const std::int64_t dim : {64, 128, 256, 96, 192, 40, 1})
    all.push_back({.name = "plain", .qk_dim = dim, .v_dim = dim});
  for (const std::int64_t dim : {64, 128, 256}) {
    const auto add = [&](Case c) {
      c.qk_dim = c.v_dim = dim;
      all.push_back(std::move(c));
    };
    add({.name = "causal f16", .dtype = DType::f16, .mask = mods::causal()});
    add({.name = "causal", .mask = mods::causal()});
    add({.name = "document, alibi", .mask = document, .score = alibi, .first = false});
    add({.name = "softcap, causal", .mask = mods::causal(), .score = softcap, .first = false});
    add({.name = "bias", .score = bias, .first = false});
    add({.name = "dropout f16", .dtype = DType::f16, .weight = dropout, .first = false});
    add({.name = "sinks, window, packed sequences", .mask = mods::sliding_window(512), .sinks = true, .packed = true});
    add({.name = "sigmoid f16", .dtype = DType::f16, .normalizer = Normalizer::sigmoid});
    add({.name = "none f16", .dtype = DType::f16, .normalizer = Normalizer::none});
    add({.name = "decode", .queries = 1, .group = 8});
    add({.name = "decode in pages of 16, causal", .queries = 4, .group = 8, .page_rows = 16, .mask = mods::causal()});
    add({.name = "pages of 1", .page_rows = 1});
    add({.name = "listed pages of 16", .page_rows = 16, .listed_pages = true});
  }
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t dim : {64, 128}) {
      all.push_back({.name = "causal", .qk_dim = dim, .v_dim = dim, .dtype = dtype, .mask = mods::causal()});
    }
    all.push_back({.name = "decode", .queries = 1, .group = 8, .dtype = dtype});
  }
  all.push_back({.name = "alibi f32", .dtype = DType::f32, .score = alibi});
  for (const std::int64_t dim : {64, 128}) {
    const auto add = [&](Case c) {
      c.qk_dim = c.v_dim = dim;
      c.dtype = DType::f64;
      all.push_back(std::move(c));
    };
    add({.name = "alibi f64", .score = alibi, .first = false});
    add({.name = "softcap, causal f64", .mask = mods::causal(), .score = softcap, .first = false});
    add({.name = "bias f64", .score = bias, .first = false});
    add({.name = "dropout f64", .weight = dropout, .first = false});
    add({.name = "sigmoid f64", .score = alibi, .normalizer = Normalizer::sigmoid, .first = false});
  }
  all.push_back({.name = "f32", .qk_dim = 256, .v_dim = 256, .dtype = DType::f32});
  all.push_back({.name = "192/128 causal", .qk_dim = 192, .v_dim = 128, .mask = mods::causal()});
  const Capture queries("q_granules", DType::i32, 1), keys("kv_granules", DType::i32, 1);
  const auto placed = [&](const Expr& mod) { return mods::by_granules(mod, queries, keys, 128, 1 << 20); };
  for (const std::int64_t dim : {64, 128, 256}) {
    const auto add = [&](Case c) {
      c.qk_dim = c.v_dim = dim;
      c.first = false;
      c.placed = true;
      all.push_back(std::move(c));
    };
    add({.name = "granules: causal, alibi", .mask = placed(mods::causal()), .score = placed(alibi)});
    add({.name = "granules: window, dropout f16",
         .dtype = DType::f16,
         .mask = placed(mods::sliding_window(512)),
         .weight = placed(dropout)});
    add({.name = "granules: causal, alibi, decode",
         .queries = 4,
         .group = 8,
         .mask = placed(mods::causal()),
         .score = placed(alibi)});
  }
  return all;
}

problem::AttentionProblem problem_of(const Case& c) {
  problem::AttentionProblem problem;
  problem.batch = c.packed ? 3 : 2;
  problem.kv_heads = 8;
  problem.q_heads = 8 * c.group;
  problem.q_rows = c.queries;
  problem.kv_rows = 8192;
  problem.qk_dim = c.qk_dim;
  problem.v_dim = c.v_dim;
  problem.q_dtype = c.dtype;
  problem.k_dtype = problem.v_dtype = c.kv_dtype.value_or(c.dtype);
  problem.o_dtype = size_of(c.dtype) == 1 ? DType::bf16 : c.dtype;
  if (c.o_dtype == DType::f64) problem.o_dtype = DType::f64;
  problem.packed = c.packed;
  problem.page_rows = c.page_rows;
  problem.listed_pages = c.listed_pages;
  problem.with_lse = c.normalizer == Normalizer::softmax;
  problem.with_sinks = c.sinks;
  problem.scale = 0.1;
  problem.normalizer = c.normalizer;
  problem.score_mod = c.score;
  problem.mask_mod = c.mask;
  problem.precision = c.dtype == DType::f64 ? expr::Precision::f64 : expr::Precision::f32;
  problem.weight_mod = c.weight;
  for (std::int64_t i = 0; i < problem.batch; ++i) {
    Sequence sequence;
    sequence.q_len = c.packed ? 1000 : c.queries;
    sequence.kv_len = 8000;
    sequence.q_begin = c.packed ? 1000 * i : 0;
    problem.sequences.push_back(sequence);
  }
  return problem;
}

AttentionTensors tensors_of(const problem::AttentionProblem& problem) {
  const auto view = [&](std::int64_t heads, std::int64_t rows, std::int64_t dim, DType dtype) {
    return TensorView(nullptr, dtype, Dims{problem.packed ? 1 : problem.batch, heads, rows, dim});
  };
  AttentionTensors tensors;
  tensors.q = view(problem.q_heads, problem.q_rows, problem.qk_dim, problem.q_dtype);
  tensors.k = view(problem.kv_heads, problem.kv_rows, problem.qk_dim, problem.k_dtype);
  tensors.v = view(problem.kv_heads, problem.kv_rows, problem.v_dim, problem.v_dtype);
  tensors.o = view(problem.q_heads, problem.q_rows, problem.v_dim, problem.o_dtype);
  return tensors;
}

class CompileTableMma : public OwnKernels {};

/// Builds the candidates of a case until one is accepted.
void expect_kernel(const Case& c, const device::KnownGpu& gpu) {
  const problem::AttentionProblem problem = problem_of(c);
  const plan::KernelMods mods = plan::portable_mods(problem, plan::OfPlaces::native);
  EXPECT_EQ(mods.places.any(), c.placed);
  const AttentionTensors tensors = tensors_of(problem);
  const AttentionOptions options;
  EXPECT_EQ(plan::forward_mma_refuses(problem, options, gpu.caps), "");
  const std::string architecture = fmt::format("sm_{}{}", gpu.caps.major, gpu.caps.minor);
  int tried = 0;
  for (shared::ForwardMmaConfig config : plan::forward_mma_configs(
           problem, mods, tensors, options, gpu.caps.shared_memory_bytes, plan::nvidia_target(gpu.caps))) {
    if (!plan::forward_mma_misfit(config, problem, mods.places, gpu.caps.shared_memory_bytes, nullptr).empty())
      continue;
    ++tried;
    const int bytes = shared::forward_mma_memory(config).bytes;
    EXPECT_LE(bytes, gpu.caps.shared_memory_bytes);
    if (c.queries <= 16) config.splits = 8;
    const jit::Source source =
        forward_mma::source(config, mods, device_text::layout_of(mods.of_kernel(false), problem.precision),
                            gpu::cuda_dialect(), architecture);
    try {
      const auto cubin = jit::build(source);
      EXPECT_EQ(cubin->spill_bytes, 0);
      fmt::print("{}, {}: {}: {} registers, {} bytes shared, {:.0f} ms\n", gpu.name, c.name, source.name,
                 cubin->registers, bytes, cubin->compile_ms);
      return;
    } catch (const jit::Rejected& rejected) {
      fmt::print("{}, {}: {}: {}\n", gpu.name, c.name, source.name, rejected.what());
      // The first kernels of many rows stand at the limit of registers: on sm_86 D 128 spills, on sm_80 D 64 with a
      // mask.
      const bool at_limit = config.row_fragments == 2 && config.kv_block == (c.qk_dim > 64 ? 64 : 128);
      EXPECT_FALSE(c.first && !at_limit) << rejected.what();
    }
  }
  ADD_FAILURE() << "none of " << tried << " kernels was accepted";
}

TEST_F(CompileTableMma, EveryChipHasAKernelWithoutSpills) {
  const ScopedVariable family("HEDDLE_FAMILY", "forward_mma");
  const std::vector<Case> all = cases();
  std::size_t number = 0;
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    if (gpu.kind != DeviceKind::cuda) continue;
    for (std::size_t i = 0; i < all.size(); ++i, ++number) {
      // D 64 or 128, without mods, on each.
      if (!test::is_kernel_drawn(number, i < 2 ? 4 : 150)) continue;
      SCOPED_TRACE(fmt::format("{}, D {}, {}", gpu.name, all[i].qk_dim, all[i].name));
      try {
        expect_kernel(all[i], gpu);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

// Keys and values of 8 bits become f16 in registers beside the products.
TEST_F(CompileTableMma, BytesHaveAKernelWithoutSpills) {
  const ScopedVariable family("HEDDLE_FAMILY", "forward_mma");
  const Expr alibi = mods::alibi(Capture("slopes", DType::f32, 1));
  std::vector<Case> all;
  for (const std::int64_t dim : {64, 128, 256, 512, 33}) {
    for (const DType type : {DType::e4m3, DType::e5m2}) {
      const auto add = [&](Case c) {
        c.qk_dim = c.v_dim = dim;
        c.kv_dtype = type;
        c.first = false;
        all.push_back(std::move(c));
      };
      add({.name = "bytes beside bf16"});
      add({.name = "bytes alone, causal, packed", .dtype = type, .mask = mods::causal(), .packed = true});
      add({.name = "bytes beside f16, pages of 16, alibi", .page_rows = 16, .dtype = DType::f16, .score = alibi});
      add({.name = "bytes beside bf16, sigmoid", .normalizer = Normalizer::sigmoid});
      add({.name = "bytes, decode", .queries = 1, .group = 8});
    }
  }
  std::size_t number = 0;
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    if (gpu.kind != DeviceKind::cuda) continue;
    for (const Case& c : all) {
      if (!test::is_kernel_drawn(number++, 60)) continue;
      SCOPED_TRACE(fmt::format("{}, D {}, {}", gpu.name, c.qk_dim, c.name));
      try {
        expect_kernel(c, gpu);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

// Values of more columns than a thread has sums for, in two slices. Queries of f32 and f64 have no room on smaller
// chips.
TEST_F(CompileTableMma, SlicesHaveAKernelWithoutSpills) {
  const ScopedVariable family("HEDDLE_FAMILY", "forward_mma");
  const std::vector<Case> of_16_bits = {
      {.name = "slices, causal", .qk_dim = 512, .v_dim = 512, .mask = mods::causal()},
      {.name = "slices, decode in pages", .qk_dim = 512, .v_dim = 512, .queries = 1, .group = 8, .page_rows = 16},
      {.name = "slices, packed", .qk_dim = 320, .v_dim = 320, .dtype = DType::f16, .packed = true}};
  const std::vector<Case> wider = {
      {.name = "slices f32", .qk_dim = 512, .v_dim = 512, .dtype = DType::f32, .mask = mods::causal(), .first = false},
      {.name = "slices f64", .qk_dim = 256, .v_dim = 256, .dtype = DType::f64, .first = false}};
  std::size_t number = 0;
  for (const auto& [name, cases] : {std::pair("l4", of_16_bits), {"h200", of_16_bits}, {"h200", wider}}) {
    const auto gpu = std::ranges::find(device::kKnownGpus, std::string_view(name), &device::KnownGpu::name);
    for (const Case& c : cases) {
      if (!test::is_kernel_drawn(number++, 3)) continue;
      SCOPED_TRACE(fmt::format("{}, {}", gpu->name, c.name));
      try {
        expect_kernel(c, *gpu);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

// Rows at odd multiples of 2 and 4 bytes, of the most columns, are copied a half or two at a time. An o of f64 is
// twice as many registers as what it is made from.
TEST_F(CompileTableMma, OddRowsAndWideOutputsHaveAKernelWithoutSpills) {
  const ScopedVariable family("HEDDLE_FAMILY", "forward_mma");
  const Expr slopes = Capture("slopes", DType::f32, 1)(leaf::h());
  const Expr score = leaf::score() + slopes * leaf::kv_idx();
  const std::vector<Case> odd = {{.name = "odd rows", .qk_dim = 130, .v_dim = 255},
                                 {.name = "odd rows f16, dropout",
                                  .qk_dim = 130,
                                  .v_dim = 255,
                                  .dtype = DType::f16,
                                  .weight = mods::dropout(0.1, 7),
                                  .first = false},
                                 {.name = "odd rows, decode",
                                  .qk_dim = 130,
                                  .v_dim = 255,
                                  .queries = 2,
                                  .group = 8,
                                  .page_rows = 16,
                                  .score = score},
                                 {.name = "o f64",
                                  .qk_dim = 256,
                                  .v_dim = 256,
                                  .mask = mods::global_and_window(3, 20),
                                  .sinks = true,
                                  .packed = true,
                                  .o_dtype = DType::f64}};
  std::size_t number = 0;
  for (const char* name : {"h200", "a100"}) {
    const auto gpu = std::ranges::find(device::kKnownGpus, name, &device::KnownGpu::name);
    for (const Case& c : odd) {
      if (!test::is_kernel_drawn(number++, 3)) continue;
      SCOPED_TRACE(fmt::format("{}, {}", name, c.name));
      expect_kernel(c, *gpu);
    }
  }
}

}  // namespace
}  // namespace heddle::cuda
