// Granules of a longer sequence, whose positions kernels look up once a tile: see gpu_grid_test.cc.
#include <gtest/gtest.h>

#include "kernels/cuda/gpu_grid.h"

namespace heddle::test {
namespace {

// Every kernel whose blocks of keys lie in granules, by each form of a mask, a score and a weight. Few CTAs take
// several tiles each; the last quarter of the keys may be large, so that tiles are repeated.
TEST_F(GpuGrid, GranulesOfEveryKernel) {
  constexpr std::int64_t kGranule = 128;
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 150'000;
  Deck<std::int64_t> edge({-1, 0, 1}, 61);
  Deck<int> tiles({2, 3, 5}, 62), ctas({0, 1, 2}, 63);
  Deck<std::string> mask({"causal", "sliding_window", "long_documents_causal", "dilated", "tree"}, 64),
      score({"", "alibi", "t5_bias", "softcap", "padded"}, 65), weight({"", "", "dropout", "weights_by_key"}, 66);
  Deck<double> late({1, 1, 100}, 67);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (kGranule % kernel.kv_block != 0) continue;
    for (int i = 0; i < 10; ++i) {
      CaseSpec spec = spec_of(kernel, ++seed);
      spec.granule = i == 9 ? 2 * kGranule : kGranule;
      // Spare kernels are offered beside a mask that works out something for each pair.
      spec.mask = kernel.spare ? "dilated" : mask.deal();
      spec.score = score.deal();
      spec.weight = weight.deal();
      spec.late = late.deal();
      spec.ctas = ctas.deal();
      spec.batch = spec.group = 2;
      spec.sequences = i == 8 ? "lengths" : "whole";
      spec.q_rows = kernel.config().rows() * 2 + edge.deal();
      spec.kv_rows = kGranule * tiles.deal() + edge.deal();
      if (seed % 3 == 0) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 7), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Few queries, whose heads are packed, and the planner's own choice of a family.
TEST_F(GpuGrid, GranulesOfAnyShape) {
  std::vector<CaseSpec> specs;
  SpecSource source(160'000);
  Deck<std::string> mask({"causal", "sliding_window", "documents", ""}, 68), score({"", "alibi", "t5_bias"}, 69);
  Deck<std::int64_t> granule({64, 128, 512, 48}, 70);
  for (int i = 0; i < scaled(60); ++i) {
    CaseSpec spec = source.draw();
    spec.granule = granule.deal();
    spec.mask = mask.deal();
    spec.score = score.deal();
    spec.weight = "";
    spec.q_start = spec.kv_start = "none";
    build_rows(spec);
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

}  // namespace
}  // namespace heddle::test
