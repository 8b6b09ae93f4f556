// Sinks, and the normalizers none and sigmoid, on the cuda backend: against the reference by the one criterion, and
// plans whose sinks change. HEDDLE_TEST_REDUCED=1 draws a tenth; HEDDLE_TEST_BACKEND=cpu sends the cases, but for those
// of plans, through the CPU.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "engine/deck.h"
#include "engine/poison.h"
#include "expect_error.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

int scaled(int count) { return reduced() ? count / 10 : count; }

class GpuNormalizers : public GpuTest {};

/// A case of that very kernel. Warpgroups of a tile see different blocks.
CaseSpec spec_of(const plan::ForwardSm90Kernel& kernel, std::uint64_t seed, DType dtype) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;  // the cases themselves are in parallel
  spec.qk_dim = kernel.qk_dim;
  spec.v_dim = kernel.v_dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  spec.layout = Layout::bshd;
  spec.rows = "given";
  spec.tile = {kernel.config().rows(), kernel.kv_block};
  spec.block = {shared::kWarpgroupRows, kernel.kv_block};
  return spec;
}

/// Draws shapes, types, layouts and sequences; kernels, as the planner chooses. Scores in f16 are mild: see the grid.
class ShapeSource {
 public:
  explicit ShapeSource(std::uint64_t first_seed) : seed_(first_seed) {}

  CaseSpec draw() {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    const plan::HeadDims dims = dims_.deal();
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype_.deal();
    spec.q_rows = q_rows_.deal();
    spec.kv_rows = kv_rows_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.group = group_.deal();
    spec.batch = batch_.deal();
    spec.layout = dims.v % 8 != 0 ? Layout::padded : layout_.deal();
    spec.sequences = sequences_.deal();
    spec.q_start = q_start_.deal();
    return spec;
  }

 private:
  std::uint64_t seed_;
  Deck<plan::HeadDims> dims_{
      {{64, 64}, {128, 128}, {64, 64}, {128, 128}, {96, 96}, {192, 128}, {192, 192}, {256, 256}, {40, 33}}, 1};
  Deck<DType> dtype_{{DType::bf16, DType::bf16, DType::f16}, 2};
  Deck<std::int64_t> q_rows_{{1, 64, 65, 129, 193, 257, 300}, 3}, kv_rows_{{1, 16, 63, 80, 129, 200, 320, 500, 0}, 4},
      kv_heads_{{1, 2}, 5}, group_{{1, 2, 4}, 6}, batch_{{1, 2}, 7};
  Deck<Layout> layout_{{Layout::bhsd, Layout::bshd, Layout::padded}, 8};
  Deck<std::string> sequences_{{"whole", "whole", "lengths", "packed"}, 9}, q_start_{{"none", "none", "uniform"}, 10};
};

/// All, or every nth where the tests are to be short.
// Sinks far below the scores and far above, none (-inf), and such that poison a head (NaN, +inf): also of rows that
// attend nothing, inside of a tile and as whole warpgroups, and of those past their sequence's end. Late scores leave
// the first maximum far below them.
TEST_F(GpuNormalizers, Sinks) {
  std::vector<CaseSpec> specs;
  ShapeSource source(90'000);
  Deck<std::string> sinks({"normal", "large", "small", "mixed", "mixed"}, 11),
      mask({"", "causal", "causal_lower_right", "some_queries_blind", "nothing", "by_head"}, 12),
      weight({"", "", "", "dropout"}, 13);
  Deck<double> late({1, 30, 100}, 14);
  for (int i = 0; i < scaled(120); ++i) {
    CaseSpec spec = source.draw();
    spec.sinks = sinks.deal();
    spec.mask = mask.deal();
    spec.weight = weight.deal();
    spec.late = late.deal();
    if (spec.q_dtype == DType::f16 && !spec.weight.empty()) spec.late = 1;
    spec.with_lse = i % 5 != 0;
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// A sink from far below to far above the scores, in steps: every way in which the two sums meet, and optimistic sums of
// all sizes.
TEST_F(GpuNormalizers, SinksThatMeetTheScores) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 95'000;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CaseSpec spec = spec_of(kernel, ++seed, dtype);
      spec.kv_heads = 2;
      spec.group = 12;
      spec.q_rows = kernel.config().rows() + 3;
      spec.kv_rows = 2 * kernel.kv_block + 5;
      spec.late = seed % 2 == 0 ? 12 : 1;
      spec.sinks = "normal";
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 11), [](const CaseSpec& spec) {
    GpuCase c(spec);
    const ConstTensorView& sinks = *c.options().sinks;
    auto* data = static_cast<float*>(const_cast<void*>(sinks.data));
    for (std::int64_t h = 0; h < sinks.shape[0]; ++h) {
      data[h * sinks.strides[0]] = -60.0F + 6 * static_cast<float>(h);  // up to 2^112 times the scores' exponentials
    }
    c.run_and_judge();
  });
}

/// Nearly as many without.
std::vector<std::string> with_none(std::vector<std::string> names) {
  names.resize(names.size() * 7 / 4);
  return names;
}

TEST_F(GpuNormalizers, WithModsMasksAndSequences) {
  std::vector<CaseSpec> specs;
  ShapeSource source(100'000);
  Deck<std::string> score(with_none(score_names()), 15),
      mask({"", "", "causal", "by_head", "some_queries_blind", "nothing"}, 16),
      weight({"", "", "", "dropout", "weights_by_key"}, 17);
  Deck<double> late({1, 1, 100}, 18), spread({1, 1, 0.001, 30}, 19);
  for (int i = 0; i < scaled(160); ++i) {
    CaseSpec spec = source.draw();
    spec.normalizer = i % 2 == 0 ? Normalizer::none : Normalizer::sigmoid;
    spec.score = score.deal();
    // Their reads are proven inside for queries from 0 on.
    if (spec.score.starts_with("streamed") && spec.q_start == "uniform") spec.q_start = "none";
    spec.mask = mask.deal();
    spec.weight = weight.deal();
    spec.late = late.deal();
    spec.spread = spread.deal();
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// 0 times NaN or an infinity is NaN, also for a dropped key, and also if no other key of the row would show it.
TEST_F(GpuNormalizers, DroppedWeightsThatAreNotFinite) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 115'000;
  for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::sigmoid, Normalizer::none}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const char* score : {"blind_rows_poisoned", "blind_slopes_poisoned", "some_elements_poisoned"}) {
        for (const std::int64_t keys : {1, 2, 40}) {
          CaseSpec spec;
          spec.seed = ++seed;
          spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
          spec.qk_dim = spec.v_dim = seed % 2 == 0 ? 64 : 128;
          spec.normalizer = normalizer;
          spec.with_lse = normalizer == Normalizer::softmax;
          spec.score = score;
          spec.weight = "dropout";
          spec.kv_heads = 4;
          spec.q_rows = 129;
          spec.kv_rows = keys;
          specs.push_back(spec);
        }
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 5), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Each kernel with either type, masked and not, in tiles that CTAs draw one after the other.
TEST_F(GpuNormalizers, EveryKernelWithSigmoids) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 120'000;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CaseSpec spec = spec_of(kernel, ++seed, dtype);
      spec.normalizer = Normalizer::sigmoid;
      spec.mask = seed % 3 == 0 ? "" : "causal";
      spec.ctas = static_cast<int>(seed % 4);
      spec.group = 2;
      spec.q_rows = kernel.config().rows() + 70;
      spec.kv_rows = 3 * kernel.kv_block + 7;
      spec.spread = 4;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 7), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// f16 holds no t beyond 65504 and loses small ones. Each kernel gets large t, tiny t, and t that grow late, in few CTAs
// that repeat tiles.
TEST_F(GpuNormalizers, EveryKernelWithScoresAsWeights) {
  struct Size {
    double spread, late;
    std::int64_t keys;
  };
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 110'000;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const Size& size : {Size{1, 1, 200}, {1, 2000, 150}, {1e-6, 1, 200}, {2e4, 1, 3}, {1e-6, 1e7, 300}}) {
      const bool f16 = ++seed % 2 == 0 || size.spread != 1 || size.late != 1;
      CaseSpec spec = spec_of(kernel, seed, f16 ? DType::f16 : DType::bf16);
      spec.normalizer = Normalizer::none;
      spec.mask = seed % 3 == 0 ? "causal" : "";
      spec.ctas = static_cast<int>(seed % 3);
      spec.batch = 2;
      spec.group = 2;
      spec.q_rows = kernel.config().rows() + 70;
      spec.kv_rows = size.keys;
      spec.spread = size.spread;
      spec.late = size.late;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 13), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Queries of NaN, and one NaN key: the NaN reaches no other row, also where the tile is computed again.
TEST_F(GpuNormalizers, NaNReachesOnlyItsRows) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 125'000;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    const bool f16 = ++seed % 2 == 0;
    CaseSpec spec = spec_of(kernel, seed, f16 ? DType::f16 : DType::bf16);
    spec.normalizer = std::array{Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}[seed % 3];
    if (spec.normalizer == Normalizer::softmax) spec.sinks = "large";
    spec.mask = "causal";
    spec.group = 2;
    spec.q_rows = spec.kv_rows = kernel.config().rows() + 40;
    specs.push_back(spec);
  }
  for_each_spec(some_if_reduced(specs, 4), [](const CaseSpec& spec) {
    GpuCase c(spec);
    poison_rows(c.host().q, [](auto, std::int64_t h, std::int64_t i) { return h == 1 && i % 11 == 4; });
    poison_rows(c.host().k, [](auto, auto, std::int64_t j) { return j == 90; });
    c.run_and_judge();
  });
}

class GpuSinks : public GpuNormalizers {
 protected:
  void SetUp() override {
    GpuNormalizers::SetUp();
    if (!IsSkipped() && gpu_backend() != BackendChoice::cuda) GTEST_SKIP() << "of a GPU alone";
  }
};

/// Four heads; the first queries attend nothing.
CaseSpec plan_spec() {
  CaseSpec spec;
  spec.seed = 130'000;
  spec.batch = spec.kv_heads = spec.group = 2;
  spec.q_rows = 400;
  spec.kv_rows = 333;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  spec.mask = "causal_lower_right";
  spec.sinks = "normal";
  return spec;
}

// A plan keeps where they are, and each run reads what stands there.
TEST_F(GpuSinks, ReadsItsSinksInEachRun) {
  const CaseSpec spec = plan_spec();
  GpuCase c(spec);
  const AttentionOptions there = c.options_there();
  const AttentionPlan plan(c.tensors(), there);
  const ConstTensorView& host = *c.options().sinks;
  auto* sinks = static_cast<float*>(const_cast<void*>(host.data));
  const std::size_t bytes = static_cast<std::size_t>(host.shape[0] * host.strides[0]) * sizeof *sinks;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.5F, 90.0F, 150.0F, -40.0F, -infinity, infinity}) {
    for (std::int64_t h = 0; h < host.shape[0]; ++h) sinks[h * host.strides[0]] = x + static_cast<float>(h);
    cuda::copy_and_wait(0, const_cast<void*>(there.sinks->data), sinks, bytes);
    c.upload();
    plan.run(c.tensors(), {.workspace = c.workspace()});
    c.download();
    judge(c.host());
  }
}

TEST_F(GpuSinks, RefusesSinksOfAnotherTypeOrPlace) {
  GpuCase c(plan_spec());
  const AttentionOptions there = c.options_there();
  const auto refused = [&](const ConstTensorView& sinks, const std::string& sentence) {
    AttentionOptions options = there;
    options.sinks = sinks;
    expect_error([&] { AttentionPlan(c.tensors(), options).run(c.tensors(), {.workspace = c.workspace()}); },
                 ErrorCode::invalid_argument, sentence);
  };
  const Tensor narrow = Tensor::zeros(DType::bf16, {4}).to(kGpu), few = Tensor::zeros(DType::f32, {3}).to(kGpu);
  refused(narrow.view(), "sinks is bf16; f32 is accepted for bf16 inputs");
  refused(few.view(), "sinks has shape [3]; [4] is accepted, an entry a query head");
  refused(*c.options().sinks, "sinks is on the CPU; cuda:0 is accepted, where q is");
  ConstTensorView astray = *c.options().sinks;
  astray.device = kGpu;
  refused(astray, "sinks is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted");
}

}  // namespace
}  // namespace heddle::test
