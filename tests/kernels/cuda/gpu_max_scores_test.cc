// The largest score of each row on a GPU: every kernel at its edges, forms of mods, sinks, sequences, pages and packed
// heads. HEDDLE_TEST_REDUCED and HEDDLE_TEST_BACKEND as in gpu_grid_test.cc.
#include <gtest/gtest.h>

#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

class GpuMaxScores : public GpuTest {};

CaseSpec spec_of(std::uint64_t seed, DType dtype, plan::HeadDims dims) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.qk_dim = dims.qk;
  spec.v_dim = dims.v;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  spec.layout = dims.qk % 8 == 0 && dims.v % 8 == 0 ? Layout::bshd : Layout::padded;
  spec.with_max_scores = true;
  return spec;
}

TEST_F(GpuMaxScores, EveryKernel) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 130'000;
  Deck<std::string> mask({"", "causal", "some_queries_blind"}, 1);
  Deck<double> late({1, 30, 100}, 2);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      CaseSpec spec = spec_of(++seed, dtype, {kernel.qk_dim, kernel.v_dim});
      spec.q_rows = kernel.config().rows() + 3;
      spec.kv_rows = 3 * kernel.kv_block + 5;
      spec.tile = {kernel.config().rows(), kernel.kv_block};
      spec.rows = "given";  // in blocks that others do not take: the planner offers spare kernels where no other fits
      spec.block = BlockSize{shared::kWarpgroupRows, kernel.kv_block};
      spec.mask = mask.deal();
      spec.late = late.deal();
      spec.with_lse = seed % 2 == 0;
      specs.push_back(spec);
    }
  }
  run_all(specs, 9);
}

TEST_F(GpuMaxScores, ModsMasksAndSinks) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 131'000;
  Deck<plan::HeadDims> dims({{64, 64}, {128, 128}, {40, 33}, {192, 128}}, 3);
  Deck<DType> dtype({DType::bf16, DType::bf16, DType::f16, DType::e4m3, DType::e5m2}, 4);
  Deck<std::string> mask({"", "causal", "sliding_window", "by_head", "nothing"}, 5), weight({"", "", "dropout"}, 6),
      sinks({"none", "none", "normal", "large", "mixed"}, 7), sequences({"whole", "whole", "lengths", "packed"}, 8);
  Deck<std::int64_t> rows({1, 64, 130, 257}, 9), keys({0, 16, 100, 129, 300}, 10);
  for (int pass = 0; pass < 2; ++pass) {
    for (const std::string& score : score_names()) {
      CaseSpec spec = spec_of(++seed, dtype.deal(), dims.deal());
      const bool is_fp8 = size_of(spec.q_dtype) == 1;
      spec.score = score;
      spec.mask = mask.deal();
      spec.weight = is_fp8 ? "" : weight.deal();
      spec.sinks = sinks.deal();
      spec.sequences = sequences.deal();
      spec.descale = is_fp8;
      spec.batch = 2;
      spec.group = 2;
      spec.q_rows = rows.deal();
      spec.kv_rows = keys.deal();
      spec.with_lse = seed % 3 != 0;
      specs.push_back(spec);
    }
  }
  run_all(specs, 9);
}

TEST_F(GpuMaxScores, PagesPackedHeadsAndLengthsThere) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 132'000;
  Deck<std::string> sequences({"whole", "lengths", "packed"}, 11), mask({"", "causal_lower_right"}, 12);
  Deck<std::int64_t> pages({0, 1, 16, 64}, 13), group({1, 4, 8}, 14);
  for (int i = 0; i < 36; ++i) {
    CaseSpec spec = spec_of(++seed, i % 2 == 0 ? DType::bf16 : DType::f16, {i % 3 == 0 ? 128 : 64, 64});
    spec.v_dim = spec.qk_dim;
    spec.batch = 3;
    spec.group = group.deal();
    spec.q_rows = i % 4 == 0 ? 70 : 3;
    spec.kv_rows = 300;
    spec.sequences = sequences.deal();
    spec.mask = mask.deal();
    spec.page_rows = pages.deal();
    spec.device_lengths = spec.sequences != "whole" && i % 2 == 0;
    specs.push_back(spec);
  }
  run_all(specs, 9);
}

}  // namespace
}  // namespace heddle::test
