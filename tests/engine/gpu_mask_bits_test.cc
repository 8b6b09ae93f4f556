// Masks that are found as bits while the products run: see gpu_grid_test.cc.
#include <gtest/gtest.h>

#include "engine/gpu_grid.h"

namespace heddle::test {
namespace {

// Masks that are found as bits while the products run: rows of a warp that are alike and that are not, bits that stay
// from block to block, reads of every kind. Few CTAs take several tiles each.
TEST_F(GpuGrid, MasksByBits) {
  std::vector<CaseSpec> specs;
  SpecSource source(90'000);
  Deck<std::string> mask(
      {"dilated", "dilated_by_3", "dilated_both_ways", "sliding_window", "dilated_window", "documents",
       "documents_from_starts", "long_documents", "long_documents_causal", "dilated_documents", "dilated_by_head",
       "distances_by_table", "dense", "dense_causal", "keys_by_table", "tree", "by_head", "neighbourhood_2d"},
      35);
  Deck<std::string> score({"", "", "", "", "alibi", "t5_bias"}, 36);
  Deck<std::string> starts({"none", "none", "ahead", "aligned"}, 44);  // captures have no negative indices
  for (int i = 0; i < scaled(140); ++i) {
    CaseSpec spec = source.draw();
    spec.mask = mask.deal();
    spec.score = score.deal();
    spec.q_start = starts.deal();
    if (!spec.score.empty() || (spec.block && spec.block->kv % 64 != 0)) {  // as above
      spec.rows = "built";
      spec.block.reset();
      spec.tile.reset();
      spec.ctas = 0;
    }
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// The same by each kernel of the table: blocks of every number of keys, at their edges.
TEST_F(GpuGrid, MasksByBitsOfEveryKernel) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 100'000;
  Deck<std::int64_t> edge({-1, 0, 1}, 37);
  Deck<int> tiles({2, 3, 5}, 38), ctas({0, 1, 2}, 39);
  Deck<std::string> mask({"dilated", "sliding_window", "dilated_by_3"}, 40);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (int i = 0; i < 3; ++i) {
      CaseSpec spec = spec_of(kernel, ++seed);
      spec.mask = mask.deal();
      spec.ctas = ctas.deal();
      spec.group = 2;
      spec.q_rows = kernel.config().rows() * 2 + edge.deal();
      spec.kv_rows = kernel.kv_block * tiles.deal() + edge.deal();
      if (seed % 3 == 0) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 7), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// And of sequences that differ: each has distances, positions and ends of its own.
TEST_F(GpuGrid, MasksByBitsOfSequencesThatDiffer) {
  std::vector<CaseSpec> specs;
  SpecSource source(110'000);
  Deck<std::string> sequences({"lengths", "packed"}, 41), starts({"none", "ahead", "aligned"}, 42);
  Deck<std::string> mask({"dilated", "sliding_window", "documents", "long_documents_causal", "tree"}, 43);
  for (int i = 0; i < scaled(40); ++i) {
    CaseSpec spec = source.draw();
    spec.sequences = sequences.deal();
    spec.q_start = starts.deal();
    spec.mask = mask.deal();
    spec.rows = "built";
    spec.block.reset();
    spec.tile.reset();
    spec.ctas = 0;
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

}  // namespace
}  // namespace heddle::test
