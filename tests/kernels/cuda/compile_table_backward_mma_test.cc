// Kernels of the portable backward as the planner would have them on an A100, RTX 3090, 4090, 5090 and, by
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
#include "device/known_gpus.h"
#include "families/backward_mma/backward_mma.h"
#include "families/backward_mma/backward_mma_arguments.h"
#include "families/backward_mma/shared/backward_mma_config.h"
#include "heddle/mods.h"
#include "kernels/cuda/own_kernels.h"
#include "sample.h"

namespace heddle::cuda {
namespace {

struct Case {
  std::string name;
  std::int64_t qk_dim = 128, v_dim = 128;
  DType dtype = DType::bf16;
  Expr mask{}, score{}, weight{};
  Normalizer normalizer = Normalizer::softmax;
  bool sinks = false, packed = false;
  bool first = true;                  // the planner's first choice is to be accepted
  bool needs_room = false;            // no kernel fits a chip that lends a CTA less than 100 KiB
  std::vector<std::string> wanted{};  // captures whose gradients are asked for
  bool serves_all = false;            // q, k and v have batch 1, and serve two sequences
  bool ordered = false;               // deterministic
  bool placed = false;                // mods read positions by granules
  std::optional<DType> kv_dtype{};    // of k and v, of 8 bits
};

std::vector<Case> cases() {
  const Expr bias = leaf::score() + Capture("bias", DType::f16, 4)(leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Expr alibi = mods::alibi(Capture("slopes", DType::f32, 1));
  const Expr document = mods::documents(Capture("document", DType::i32, 1));
  const Expr softcap = 20.0 * tanh(leaf::score() / 20.0);
  const Expr dropout = mods::dropout(0.1, 7);
  std::vector<Case> all;
  for (const std::int64_t dim : {64, 128, 256, 96, 192, 40, 1}) {
    all.push_back({.name = "plain", .qk_dim = dim, .v_dim = dim});
  }
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
    add({.name = "sinks, window, packed sequences",
         .mask = mods::sliding_window(512),
         .sinks = true,
         .packed = true,
         .first = false});
    add({.name = "sigmoid f16", .dtype = DType::f16, .normalizer = Normalizer::sigmoid, .first = false});
    add({.name = "none f16", .dtype = DType::f16, .normalizer = Normalizer::none});
    add({.name = "causal f32", .dtype = DType::f32, .mask = mods::causal(), .first = false});
  }
  const Capture slopes("slopes", DType::f32, 1), keys("keys", DType::f32, 1), distances("distances", DType::f32, 1);
  all.push_back({.name = "captures",
                 .score = leaf::score() + slopes(leaf::h()) * leaf::kv_idx() + keys(leaf::kv_idx()) +
                          distances(leaf::q_idx() - leaf::kv_idx() + 8192),
                 .first = false,
                 .wanted = {"slopes", "keys", "distances"}});
  all.push_back({.name = "captures f32",
                 .dtype = DType::f32,
                 .score = leaf::score() * slopes(leaf::h()) + keys(leaf::kv_idx()),
                 .first = false,
                 .wanted = {"slopes", "keys"}});
  for (const std::int64_t dim : {64, 128, 256, 512}) {
    all.push_back({.name = "8 bits, causal",
                   .qk_dim = dim,
                   .v_dim = dim,
                   .mask = mods::causal(),
                   .first = false,
                   .kv_dtype = DType::e4m3});
    all.push_back({.name = "8 bits, softcap, window, sinks, packed sequences",
                   .qk_dim = dim,
                   .v_dim = dim,
                   .dtype = DType::f16,
                   .mask = mods::sliding_window(512),
                   .score = softcap,
                   .sinks = true,
                   .packed = true,
                   .first = false,
                   .kv_dtype = DType::e5m2});
  }
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      all.push_back({.name = "captures in order",
                     .qk_dim = dim,
                     .v_dim = dim,
                     .dtype = dtype,
                     .score = leaf::score() * slopes(leaf::h()) + keys(leaf::kv_idx()) +
                              distances(leaf::q_idx() - leaf::kv_idx() + 8192),
                     .first = false,
                     .needs_room = dim == 256,
                     .wanted = {"slopes", "keys", "distances"},
                     .ordered = true});
    }
  }
  for (const std::int64_t dim : {64, 128, 256}) {
    const auto add = [&](Case c) {
      c.qk_dim = c.v_dim = dim;
      c.first = false;
      c.serves_all = true;
      all.push_back(std::move(c));
    };
    add({.name = "all sequences"});
    add({.name = "all sequences, causal, alibi", .dtype = DType::f16, .mask = mods::causal(), .score = alibi});
    add({.name = "all sequences f32, sinks", .dtype = DType::f32, .mask = mods::causal(), .sinks = true});
    add({.name = "all sequences, captures",
         .score = leaf::score() * slopes(leaf::h()) + keys(leaf::kv_idx()),
         .wanted = {"slopes", "keys"}});
  }
  for (const std::int64_t dim : {64, 128}) {
    const auto add = [&](Case c) {
      c.qk_dim = c.v_dim = dim;
      c.dtype = DType::f64;
      all.push_back(std::move(c));
    };
    add({.name = "causal f64", .mask = mods::causal(), .first = false});
    add({.name = "softcap, window f64, sinks, packed sequences",
         .mask = mods::sliding_window(512),
         .score = softcap,
         .sinks = true,
         .packed = true,
         .first = false});
    add({.name = "alibi f64, dropout", .score = alibi, .weight = dropout, .first = false});
    add({.name = "sigmoid f64", .normalizer = Normalizer::sigmoid, .first = false});
    add({.name = "captures f64",
         .score = leaf::score() * slopes(leaf::h()) + keys(leaf::kv_idx()),
         .first = false,
         .wanted = {"slopes", "keys"}});
  }
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
    const std::int64_t dim = dtype == DType::f64 ? 256 : 512;
    const auto add = [&](Case c) {
      c.qk_dim = c.v_dim = dim;
      c.dtype = dtype;
      c.first = false;
      c.needs_room = size_of(dtype) > 2;
      all.push_back(std::move(c));
    };
    add({.name = "slices, causal", .mask = mods::causal()});
    add({.name = "slices, softcap, window, sinks, packed sequences",
         .mask = mods::sliding_window(512),
         .score = softcap,
         .sinks = true,
         .packed = true});
    add({.name = "slices, alibi, dropout", .score = alibi, .weight = dropout});
    add({.name = "slices, captures",
         .score = leaf::score() * slopes(leaf::h()) + keys(leaf::kv_idx()),
         .wanted = {"slopes", "keys"}});
  }
  all.push_back({.name = "576/512 causal", .qk_dim = 576, .v_dim = 512, .mask = mods::causal(), .first = false});
  all.push_back({.name = "320 causal", .qk_dim = 320, .v_dim = 320, .mask = mods::causal(), .first = false});
  all.push_back({.name = "64/300", .qk_dim = 64, .v_dim = 300, .first = false});
  all.push_back({.name = "192/128 causal", .qk_dim = 192, .v_dim = 128, .mask = mods::causal()});
  const Capture q_granules("q_granules", DType::i32, 1), kv_granules("kv_granules", DType::i32, 1);
  const auto placed = [&](const Expr& mod) { return mods::by_granules(mod, q_granules, kv_granules, 128, 1 << 13); };
  for (const std::int64_t dim : {64, 128, 256}) {
    const auto add = [&](Case c) {
      c.qk_dim = c.v_dim = dim;
      c.first = false;
      c.placed = true;
      all.push_back(std::move(c));
    };
    add({.name = "granules: causal, alibi", .mask = placed(mods::causal()), .score = placed(alibi)});
    add({.name = "granules: captures",
         .mask = placed(mods::causal()),
         .score = placed(leaf::score() * slopes(leaf::h()) + keys(leaf::kv_idx())),
         .wanted = {"slopes", "keys"}});
  }
  return all;
}

problem::AttentionProblem problem_of(const Case& c) {
  problem::AttentionProblem problem;
  problem.pass = problem::Pass::backward;
  problem.batch = c.packed ? 3 : 2;
  problem.q_heads = problem.kv_heads = 8;
  problem.q_rows = 4096;
  problem.kv_rows = 8192;
  problem.qk_dim = c.qk_dim;
  problem.v_dim = c.v_dim;
  problem.q_dtype = problem.k_dtype = problem.v_dtype = problem.o_dtype = c.dtype;
  problem.k_dtype = problem.v_dtype = c.kv_dtype.value_or(c.dtype);
  problem.packed = c.packed;
  problem.with_sinks = c.sinks;
  problem.wanted.q = problem.wanted.k = problem.wanted.v = true;
  problem.wanted.sinks = c.sinks;
  problem.wanted.captures = c.wanted;
  problem.deterministic = c.ordered;
  problem.scale = 0.1;
  problem.normalizer = c.normalizer;
  problem.score_mod = c.score;
  problem.mask_mod = c.mask;
  problem.precision = c.dtype == DType::f64 ? expr::Precision::f64 : expr::Precision::f32;
  problem.weight_mod = c.weight;
  for (std::int64_t i = 0; i < problem.batch; ++i) {
    Sequence sequence;
    sequence.q_len = c.packed ? 1000 : 4096;
    sequence.kv_len = c.packed ? 2000 : 8000;
    sequence.q_begin = c.packed ? 1000 * i : 0;
    sequence.kv_begin = c.packed ? 2000 * i : 0;
    problem.sequences.push_back(sequence);
  }
  return problem;
}

/// Captures are vectors of this length.
constexpr std::int64_t kCaptured = 12288;
TensorView captured() { return TensorView(nullptr, DType::f32, Dims{kCaptured}); }
Bindings bindings_of(const Case& c) {
  Bindings bindings;
  for (const std::string& name : c.wanted) bindings.captures[name] = captured();
  return bindings;
}

BackwardTensors tensors_of(const problem::AttentionProblem& problem, const Case& c) {
  const auto view = [&](std::int64_t rows, std::int64_t dim) {
    return TensorView(nullptr, problem.q_dtype, Dims{problem.packed ? 1 : problem.batch, problem.q_heads, rows, dim});
  };
  BackwardTensors tensors;
  tensors.q = view(problem.q_rows, problem.qk_dim);
  tensors.k = view(problem.kv_rows, problem.qk_dim);
  tensors.v = view(problem.kv_rows, problem.v_dim);
  tensors.o = tensors.d_o = view(problem.q_rows, problem.v_dim);
  tensors.dq = view(problem.q_rows, problem.qk_dim);
  tensors.dk = view(problem.kv_rows, problem.qk_dim);
  tensors.dv = view(problem.kv_rows, problem.v_dim);
  if (problem.wanted.sinks) tensors.d_sinks = TensorView(nullptr, DType::f32, Dims{problem.q_heads});
  for (const std::string& name : c.wanted) tensors.d_captures[name] = captured();
  tensors.k.dtype = problem.k_dtype;
  tensors.v.dtype = problem.v_dtype;
  if (c.serves_all) {
    for (ConstTensorView* tensor : {&tensors.q, &tensors.k, &tensors.v}) tensor->shape[0] = 1;
    for (auto* gradient : {&tensors.dq, &tensors.dk, &tensors.dv}) (*gradient)->shape[0] = 1;
  }
  return tensors;
}

class CompileTableBackwardMma : public OwnKernels {};

/// Builds the candidates of a case until one is accepted.
void expect_kernels(const Case& c, const device::KnownGpu& gpu) {
  const problem::AttentionProblem problem = problem_of(c);
  const plan::BackwardMods mods = plan::backward_mods(problem, plan::OfPlaces::native);
  EXPECT_EQ(mods.places.any(), c.placed);
  const BackwardTensors tensors = tensors_of(problem, c);
  const plan::MmaReads reads = plan::mma_reads(problem, bindings_of(c), mods);
  const std::string architecture = fmt::format("sm_{}{}", gpu.caps.major, gpu.caps.minor);
  int tried = 0;
  for (const plan::BackwardMmaKernels& kernels :
       plan::backward_mma_kernels(problem, mods, reads, tensors, plan::nvidia_target(gpu.caps))) {
    if (!plan::backward_mma_misfit(kernels, gpu.caps.shared_memory_bytes).empty()) continue;
    ++tried;
    const jit::Source source = backward_mma::source(kernels, mods, reads, backward_mma::types_of_sums(reads, tensors),
                                                    backward_mma::layout_of(mods, reads, problem.precision),
                                                    gpu::cuda_dialect(), architecture);
    try {
      const auto cubin = jit::build(source);
      EXPECT_LE(cubin->spill_bytes, source.bearable_spill_bytes);
      fmt::print("{}, {}: {}: {} registers, {} bytes spilled, {:.0f} ms\n", gpu.name, c.name, source.name,
                 cubin->registers, cubin->spill_bytes, cubin->compile_ms);
      return;
    } catch (const jit::Rejected& rejected) {
      const std::string reason = rejected.what();
      fmt::print("{}, {}: {}\n", gpu.name, c.name, reason.substr(0, reason.find('\n')));
      // At D 128 step 64 the compiler stands at the limit of registers on some chips.
      EXPECT_FALSE(c.first && c.qk_dim != 128 && tried == 1) << reason;
    }
  }
  if (tried == 0 && c.needs_room && gpu.caps.shared_memory_bytes < 100 * 1024) return;
  ADD_FAILURE() << "none of " << tried << " kernels was accepted";
}

TEST_F(CompileTableBackwardMma, EveryChipHasKernelsWithoutSpills) {
  const std::vector<Case> all = cases();
  std::size_t number = 0;
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    if (gpu.kind != DeviceKind::cuda) continue;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!test::is_kernel_drawn(number++, 200)) continue;
      SCOPED_TRACE(fmt::format("{}, D {}, {}", gpu.name, all[i].qk_dim, all[i].name));
      try {
        expect_kernels(all[i], gpu);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace heddle::cuda
