// Masks that are found as bits, once when a kernel is prepared or while the products run: see gpu_grid_test.cc.
#include <gtest/gtest.h>

#include "kernels/cuda/gpu_grid.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

constexpr const char* kLimit = "HEDDLE_MASK_BYTES";

/// Draws cases. If a kernel that finds bits in each run lacks registers or blocks, the planner chooses.
void draw_masks(SpecSource& source, Deck<std::string>& mask, int count, std::vector<CaseSpec>& specs) {
  Deck<std::string> score({"", "", "", "", "alibi", "t5_bias"}, 36);
  Deck<std::string> starts({"none", "none", "ahead", "aligned"}, 44);  // captures have no negative indices
  for (int i = 0; i < count; ++i) {
    CaseSpec spec = source.draw();
    spec.mask = mask.deal();
    spec.score = score.deal();
    spec.q_start = starts.deal();
    if (!spec.score.empty() || (spec.block && spec.block->kv % 64 != 0)) {  // as above
      build_rows(spec);
    }
    specs.push_back(spec);
  }
}

const std::vector<std::string> kThatRead = {"documents",      "documents_from_starts", "long_documents",
                                            "tree",           "long_documents_causal", "dilated_documents",
                                            "dense",          "dense_causal",          "keys_by_table",
                                            "dilated_window", "neighbourhood_2d",      "dilated_by_head"};

// Masks by bits. Masks that read are found before any run, others while the products run. Cases: rows of a warp that
// are alike and that are not, bits that stay from block to block, reads of every kind. Few CTAs take several tiles
// each.
TEST_F(GpuGrid, MasksByBits) {
  std::vector<CaseSpec> specs;
  SpecSource source(90'000);
  Deck<std::string> mask(
      {"dilated", "dilated_by_3", "dilated_both_ways", "sliding_window", "dilated_window", "documents",
       "documents_from_starts", "long_documents", "long_documents_causal", "dilated_documents", "dilated_by_head",
       "distances_by_table", "dense", "dense_causal", "keys_by_table", "tree", "by_head", "neighbourhood_2d"},
      35);
  draw_masks(source, mask, scaled(140), specs);
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Masks that could be stored, with storing forbidden: packed heads and lengths on the device have them so.
TEST_F(GpuGrid, MasksByBitsFoundInEachRun) {
  const ScopedVariable nothing(kLimit, "0");
  std::vector<CaseSpec> specs;
  SpecSource source(120'000);
  Deck<std::string> mask(kThatRead, 45);
  draw_masks(source, mask, scaled(60), specs);
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Stored bits in each kernel of the table, at the edges of its blocks. Cases: all of a row's blocks partial, and some;
// tiles that few CTAs draw one after the other, and tiles that are repeated with the running maximum; warpgroups on
// different blocks; blocks of the mask that hold several tiles; tiles that descend.
TEST_F(GpuGrid, StoredMasksOfEveryKernel) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 130'000;
  Deck<std::int64_t> edge({-1, 0, 1}, 46);
  Deck<int> tiles({2, 3, 5}, 47), ctas({0, 1, 2}, 48);
  Deck<std::string> mask({"tree", "documents", "dense", "long_documents_causal", "keys_by_table", "by_head"}, 49),
      score({"", "", "alibi"}, 50);
  Deck<double> late({1, 1, 100}, 51);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (int i = 0; i < 4; ++i) {
      CaseSpec spec = spec_of(kernel, ++seed);
      spec.mask = mask.deal();
      spec.score = score.deal();
      spec.late = late.deal();
      spec.ctas = ctas.deal();
      spec.batch = 2;
      spec.group = 2;
      spec.with_lse = i != 3;
      spec.q_rows = kernel.config().rows() * 2 + edge.deal();
      spec.kv_rows = kernel.kv_block * tiles.deal() + edge.deal();
      // For more keys, a kernel other than the spare one would fit.
      if (i == 2) spec.block = {4 * kernel.config().rows(), kernel.spare ? kernel.kv_block : 2 * kernel.kv_block};
      if (seed % 3 == 0) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 7), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Each kernel of the table: blocks of every number of keys, at their edges.
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
