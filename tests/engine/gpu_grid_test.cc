// The grid of the cuda backend: attention over shapes, types, layouts, masks, kernels and scores against the reference,
// by the one criterion. HEDDLE_TEST_REDUCED=1 draws a tenth and small sizes; HEDDLE_TEST_BACKEND=cpu sends the same
// cases through the CPU.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "engine/deck.h"
#include "engine/gpu_test.h"
#include "plan/families/forward_sm90_costs.h"

namespace heddle::test {
namespace {

int scaled(int count) { return reduced() ? count / 10 : count; }

class GpuGrid : public GpuTest {};

// Scores that a case may cost in the reference.
constexpr std::int64_t kElements = 400'000;

void shrink_to_budget(CaseSpec& spec) {
  const auto too_large = [&] {
    return spec.batch * spec.q_heads() * spec.q_rows * spec.kv_rows > (reduced() ? kElements / 8 : kElements);
  };
  if (too_large()) spec.batch = spec.share_q_batch || spec.share_kv_batch ? 2 : 1;
  if (too_large()) spec.kv_heads = 1;
  while (too_large() && spec.q_rows > 200) spec.q_rows -= 64;
  while (too_large() && spec.kv_rows > 200) spec.kv_rows -= 64;
  if (too_large()) spec.group = std::min<std::int64_t>(spec.group, 3);
}

/// A kernel of the family and blocks of a mask that it takes: its tile's, or a warpgroup's.
struct KernelBlocks {
  BlockSize tile, block;
};
std::vector<KernelBlocks> kernel_blocks(plan::HeadDims native) {
  std::vector<KernelBlocks> all;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (!(plan::dims_of(kernel) == native)) continue;
    const BlockSize tile = {kernel.config().rows(), kernel.kv_block};
    all.push_back({tile, tile});
    all.push_back({tile, {shared::kWarpgroupRows, tile.kv}});
  }
  return all;
}

/// Head dims that have kernels of their own, and those between them.
const std::vector<plan::HeadDims> kDims = {{64, 64},   {96, 96},   {128, 128}, {192, 128}, {192, 192}, {256, 256},
                                           {8, 8},     {16, 16},   {40, 40},   {72, 72},   {80, 80},   {112, 112},
                                           {160, 160}, {208, 248}, {64, 128},  {128, 64},  {96, 64},   {256, 8},
                                           {1, 1},     {20, 33},   {100, 100}, {130, 255}};
/// And each native one twice as often.
std::vector<plan::HeadDims> with_native(std::vector<plan::HeadDims> dims) {
  for (const plan::HeadDims& some : kDims) {
    if (plan::native_dims(some) == some) dims.insert(dims.end(), 2, some);
  }
  return dims;
}

// Nearly as many cases without a mask.
std::vector<std::string> with_unmasked(std::vector<std::string> masks) {
  masks.resize(masks.size() * 7 / 4);
  return masks;
}

class SpecSource {
 public:
  explicit SpecSource(std::uint64_t first_seed = 0) : seed_(first_seed) {}

  CaseSpec draw() {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;  // the cases themselves are in parallel
    const plan::HeadDims dims = dims_.deal();
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype_.deal();
    spec.q_rows = q_rows_.deal();
    spec.kv_rows = kv_rows_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.group = group_.deal();
    spec.batch = batch_.deal();
    const int shared = spec.batch > 1 ? shared_.deal() : 0;
    spec.share_q_batch = shared == 1;
    spec.share_kv_batch = shared == 2;
    spec.layout = layout_.deal();
    if (dims.qk % 8 != 0 || dims.v % 8 != 0) spec.layout = Layout::padded;  // others TMA does not take
    spec.mask = mask_.deal();
    spec.q_start = q_start_.deal();
    spec.spread = spread_.deal();
    spec.late = late_.deal();
    // In f16 a weight below 2^-14 of the largest loses bits, and one below 2^-24 all: where such ones alone decide an
    // element, its row may err by more than the criterion allows (docs/notes/hopper_forward.md).
    if (spec.q_dtype == DType::f16 && spec.spread == 30) spec.spread = 4;
    spec.with_lse = with_lse_.deal() != 0;
    spec.scale = scale_.deal();
    if (given_rows_.deal() != 0) {
      spec.rows = "given";
      const KernelBlocks given = blocks_of(plan::native_dims(dims)).deal();
      spec.tile = given.tile;
      spec.block = given.block;
      spec.ctas = ctas_.deal();
    }
    shrink_to_budget(spec);
    return spec;
  }

 private:
  Deck<KernelBlocks>& blocks_of(plan::HeadDims native) {
    return blocks_.try_emplace({native.qk, native.v}, kernel_blocks(native), 17).first->second;
  }

  std::uint64_t seed_;
  Deck<plan::HeadDims> dims_{with_native(kDims), 1};
  Deck<DType> dtype_{{DType::bf16, DType::bf16, DType::bf16, DType::f16}, 2};
  Deck<std::int64_t> q_rows_{{1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257, 300, 385, 449, 0}, 3};
  Deck<std::int64_t> kv_rows_{
      {1, 2, 16, 63, 64, 65, 79, 80, 81, 127, 128, 129, 159, 160, 161, 192, 257, 320, 385, 500, 641, 0}, 4};
  Deck<std::int64_t> kv_heads_{{1, 2, 3}, 5}, group_{{1, 2, 3, 5}, 6}, batch_{{1, 2, 3}, 7};
  Deck<int> shared_{{0, 0, 1, 2}, 8};
  Deck<Layout> layout_{{Layout::bhsd, Layout::bshd, Layout::bshd, Layout::padded, Layout::sliced}, 9};
  // Each mask, with each type and kernel, is a compilation of a second.
  Deck<std::string> mask_{
      with_unmasked({"causal", "causal", "causal_lower_right", "sliding_window", "dilated_window", "prefix_lm",
                     "global_and_window", "neighbourhood_2d", "block_diffusion", "some_queries_blind",
                     "window_by_params", "window_by_params", "not_causal_or_window", "by_head", "nothing"}),
      10};
  Deck<std::string> q_start_{{"none", "none", "uniform"}, 11};
  Deck<double> spread_{{1, 1, 1, 30, 1000}, 12}, late_{{1, 1, 1, 1, 100}, 13};
  Deck<int> with_lse_{{1, 1, 1, 0}, 14}, given_rows_{{0, 1}, 15};
  Deck<std::optional<double>> scale_{{std::nullopt, std::nullopt, 0.02, 0.5}, 16};
  Deck<int> ctas_{{0, 1, 3}, 22};
  std::map<std::pair<int, int>, Deck<KernelBlocks>> blocks_;  // of native head dims
};

/// A case of that very kernel, in bf16. Warpgroups of a tile see different blocks.
CaseSpec spec_of(const plan::ForwardSm90Kernel& kernel, std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.qk_dim = kernel.qk_dim;
  spec.v_dim = kernel.v_dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  spec.rows = "given";
  spec.tile = {kernel.config().rows(), kernel.kv_block};
  spec.block = {shared::kWarpgroupRows, kernel.kv_block};
  return spec;
}

/// All, or every nth where the tests are to be short.
TEST_F(GpuGrid, AgreesWithTheReference) {
  SpecSource source;
  std::vector<CaseSpec> specs;
  for (int i = 0; i < scaled(200); ++i) specs.push_back(source.draw());
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Every score and weight mod, alone and together, with few masks: each combination is a compilation of seconds.
/// By the planner, for a kernel that it chooses.
void build_rows(CaseSpec& spec) {
  spec.rows = "built";
  spec.tile.reset();
  spec.block.reset();
  spec.ctas = 0;
}

TEST_F(GpuGrid, ScoreAndWeightMods) {
  std::vector<CaseSpec> specs;
  SpecSource source(40'000);
  Deck<std::string> score(score_names(), 24), weight(with_unmasked(weight_names()), 25);
  Deck<std::string> mask({"", "causal", "by_head"}, 26);
  for (int i = 0; i < scaled(120); ++i) {
    CaseSpec spec = source.draw();
    spec.score = i % 4 == 3 ? "" : score.deal();
    spec.weight = i % 4 == 3 || i % 8 == 0 ? weight.deal() : "";
    if (spec.score == "constant") spec.with_lse = true;
    // Their reads are proven inside for queries from 0 on; and not every kernel has room for their tiles.
    if (spec.score.starts_with("streamed")) {
      if (spec.q_start == "uniform") spec.q_start = "ahead";
      build_rows(spec);
    }
    // What 2 % of a row are left of may be too small for f16, as above.
    if (spec.weight == "drops_most") spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
    spec.mask = mask.deal();
    // Such blocks fit one kernel alone, which may have no registers for the mods.
    if (spec.block && spec.block->kv % 64 != 0) build_rows(spec);
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// A bias that comes in tiles, by every kernel that has room for them, warpgroups of a tile on different blocks; and
// rows in which nothing attends, whose term is NaN.
TEST_F(GpuGrid, StreamedCapturesAndTermsOfBlindRows) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 90'000;
  Deck<std::string> sequences({"", "", "lengths", "packed"}, 35), mask({"", "causal", "by_head", "sliding_window"}, 36),
      start({"none", "ahead"}, 37);
  Deck<int> ctas({0, 1, 2}, 38);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const char* score : {"streamed_bias", "streamed_bias_f32", "streamed_in_cap"}) {
      if (kernel.kv_block % 64 != 0) continue;
      CaseSpec spec = spec_of(kernel, ++seed);
      if (seed % 3 == 0) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      spec.score = score;
      spec.sequences = sequences.deal();
      spec.mask = mask.deal();
      spec.q_start = start.deal();
      spec.ctas = ctas.deal();
      spec.batch = 2;
      spec.group = 2;
      spec.q_rows = 2 * kernel.config().rows() + 30;
      spec.kv_rows = 4 * kernel.kv_block + 30;
      // The planner's own choice for the others: not every kernel has room for the tiles.
      const bool roomy = kernel.kv_block == 64 && (kernel.qk_dim < 192 || spec.score != "streamed_bias_f32");
      if (spec.mask.empty() || !roomy) build_rows(spec);
      specs.push_back(spec);
    }
  }
  for (const plan::HeadDims& dims : {plan::HeadDims{64, 64}, {128, 128}, {256, 256}}) {
    for (const char* score : {"blind_rows_poisoned", "blind_slopes_poisoned"}) {
      CaseSpec spec;
      spec.seed = ++seed;
      spec.threads = 1;
      spec.qk_dim = dims.qk;
      spec.v_dim = dims.v;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      spec.score = score;
      spec.mask = "some_queries_blind";
      spec.q_rows = 300;
      spec.kv_rows = 333;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 6), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

/// Draws which sequences a case has, and where their queries start.
class SequencesSource {
 public:
  void place(CaseSpec& spec) {
    spec.sequences = sequences_.deal();
    spec.q_start = q_start_.deal();
    spec.mask = mask_.deal();
    spec.score = score_.deal();
    // A kernel that a given block asks for may have no registers for what reads.
    if (spec.score.empty() && !(spec.block && spec.block->kv % 64 != 0)) return;
    spec.rows = "built";
    spec.ctas = 0;
    spec.tile.reset();
    spec.block.reset();
  }

 private:
  Deck<std::string> sequences_{{"lengths", "packed"}, 27}, q_start_{{"none", "ahead", "aligned"}, 28},
      mask_{{"", "", "causal", "causal_lower_right", "sliding_window", "by_head", "prefix_by_sequence"}, 29},
      score_{{"", "", "", "", "alibi", "full_bias", "softcap", "t5_bias"}, 30};
};

// Lengths of their own, from 0 on, and packed batches, with starts; what lies past an end is NaN.
TEST_F(GpuGrid, SequencesThatDiffer) {
  std::vector<CaseSpec> specs;
  SpecSource source(70'000);
  SequencesSource sequences;
  for (int i = 0; i < scaled(150); ++i) {
    CaseSpec spec = source.draw();
    sequences.place(spec);
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Each kernel of the table with either type, masked and not, without lse too, at the edges of its tile.
TEST_F(GpuGrid, EveryKernelAtTheEdgesOfItsTile) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 10'000;
  Deck<std::int64_t> edge({-1, 0, 1}, 20);
  Deck<int> tiles({1, 2, 3}, 21), ctas({0, 1, 2, 5}, 23);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const char* mask : {"", "causal", "by_head"}) {
        for (const bool with_lse : {true, false}) {
          if (!with_lse && *mask != '\0') continue;
          CaseSpec spec = spec_of(kernel, ++seed);
          spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
          spec.mask = mask;
          spec.with_lse = with_lse;
          spec.layout = with_lse ? Layout::bshd : Layout::bhsd;
          spec.ctas = ctas.deal();  // few draw tiles one after the other
          spec.group = 2;
          spec.q_rows = kernel.config().rows() * (1 + tiles.deal() % 2) + edge.deal();
          spec.kv_rows = kernel.kv_block * tiles.deal() + edge.deal();
          specs.push_back(spec);
        }
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 11), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

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

// The same for sequences that differ: the producer and every warpgroup see the end of each.
TEST_F(GpuGrid, EveryKernelOnSequencesThatDiffer) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 60'000;
  Deck<int> ctas({0, 1, 2, 5}, 31);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const char* sequences : {"lengths", "packed"}) {
      for (const char* mask : {"", "causal_lower_right"}) {
        CaseSpec spec = spec_of(kernel, ++seed);
        if (seed % 4 == 0) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
        spec.sequences = sequences;
        spec.mask = mask;
        spec.q_start = *mask != '\0' ? "aligned" : "none";
        spec.ctas = ctas.deal();
        spec.batch = 4;
        spec.group = 2;
        spec.q_rows = 2 * kernel.config().rows() + 30;
        spec.kv_rows = 3 * kernel.kv_block + 30;
        spec.late = seed % 3 == 0 ? 100 : 1;
        specs.push_back(spec);
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 5), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Each kernel that drops by whole masks of draws, in each spelling: under masks, lengths and starts, in f16, and where
// tiles are repeated.
TEST_F(GpuGrid, EveryKernelDrops) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 90'000;
  Deck<std::string> mask({"", "", "causal", "by_head"}, 41), sequences({"whole", "whole", "lengths", "packed"}, 42);
  Deck<int> ctas({0, 1, 2}, 43);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (kernel.kv_block % shared::kKeysOfDraw != 0) continue;
    for (const char* weight :
         {"dropout", "dropout_by_params", "dropout_by_head", "dropout_mirrored", "drops_most", "drops_all"}) {
      CaseSpec spec = spec_of(kernel, ++seed);
      spec.weight = weight;
      spec.mask = mask.deal();
      spec.sequences = sequences.deal();
      spec.q_start = seed % 3 == 0 ? (spec.sequences == "whole" ? "uniform" : "ahead") : "none";
      spec.ctas = ctas.deal();
      spec.batch = 2;
      spec.group = 3;
      spec.q_rows = kernel.config().rows() + 70;
      spec.kv_rows = 3 * kernel.kv_block + 21;
      if (seed % 4 == 0) spec.late = 100;
      if (seed % 5 == 0 && spec.weight != "drops_most") spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 7), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Rows of o that TMA does not store, and tiles that begin at the last block of keys: that of their own sequence.
TEST_F(GpuGrid, OddHeadDimsAndDescendingScoresOfSequencesThatDiffer) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 80'000;
  Deck<std::int64_t> rows({64, 130, 300}, 32), keys({100, 300, 520}, 33);
  Deck<std::string> starts({"none", "ahead", "aligned"}, 34);
  const std::vector<plan::HeadDims> some = {{1, 1}, {20, 33}, {40, 40}, {100, 100}, {130, 255}, {192, 128}};
  for (const plan::HeadDims& dims : some) {
    for (const char* score : {"", "alibi", "relative_bias"}) {
      for (const char* sequences : {"lengths", "packed"}) {
        CaseSpec spec;
        spec.seed = ++seed;
        spec.threads = 1;
        spec.qk_dim = dims.qk;
        spec.v_dim = dims.v;
        spec.q_dtype = spec.k_dtype = spec.v_dtype = seed % 4 == 0 ? DType::f16 : DType::bf16;
        spec.score = score;
        spec.mask = *score != '\0' || seed % 2 == 0 ? "causal" : "";
        spec.sequences = sequences;
        spec.q_start = starts.deal();
        spec.batch = 4;
        spec.group = 2;
        spec.q_rows = rows.deal();
        spec.kv_rows = keys.deal();
        spec.layout = dims.qk % 8 == 0 && dims.v % 8 == 0 ? Layout::bshd : Layout::padded;
        specs.push_back(spec);
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 5), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// All head dims, in memory without a gap (where TMA takes that) and with NaN behind every row, which none of them may
// read or overwrite; also of queries that attend nothing.
TEST_F(GpuGrid, HeadDims) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 50'000;
  Deck<std::int64_t> rows({64, 130, 200, 1}, 27), keys({16, 100, 129, 300}, 28);
  for (const plan::HeadDims& dims : kDims) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const char* mask : {"", "causal", "nothing"}) {
        CaseSpec spec;
        spec.seed = ++seed;
        spec.threads = 1;
        spec.qk_dim = dims.qk;
        spec.v_dim = dims.v;
        spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
        spec.mask = mask;
        spec.batch = spec.group = 2;
        spec.q_rows = rows.deal();
        spec.kv_rows = keys.deal();
        const bool packed = dims.qk % 8 == 0 && dims.v % 8 == 0 && dtype == DType::bf16;
        spec.layout = packed ? Layout::bshd : Layout::padded;
        specs.push_back(spec);
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 7), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// More tiles than CTAs, and rows of many steps: persistent CTAs take several tiles each, in a changed order.
TEST_F(GpuGrid, ManyTilesAndManySteps) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 20'000;
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    for (const char* mask : {"", "causal", "sliding_window"}) {
      CaseSpec many;
      many.seed = ++seed;
      many.threads = 1;
      many.qk_dim = many.v_dim = dim;
      many.q_dtype = many.k_dtype = many.v_dtype = DType::bf16;
      many.layout = Layout::bshd;
      many.mask = mask;
      many.batch = reduced() ? 2 : 20;
      many.kv_heads = 2;
      many.group = 5;
      many.q_rows = 130;
      many.kv_rows = 66;
      specs.push_back(many);
      CaseSpec longer = many;
      longer.seed = ++seed;
      longer.batch = longer.kv_heads = 1;
      longer.group = 1;
      longer.q_rows = reduced() ? 200 : 700;
      longer.kv_rows = reduced() ? 500 : 2100;
      specs.push_back(longer);
    }
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Late keys far above the first ones: tiles leave the safe range, and the few CTAs bring each once more, between others
// and at the end of the list.
TEST_F(GpuGrid, RepeatsManyTilesOfACta) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 30'000;
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const int ctas : {1, 2}) {
      for (const char* mask : {"", "causal"}) {
        CaseSpec spec = spec_of(kernel, ++seed);
        spec.mask = mask;
        spec.ctas = ctas;
        spec.late = 300;
        spec.batch = reduced() ? 1 : 3;
        spec.group = reduced() ? 2 : 5;
        spec.q_rows = spec.kv_rows = kernel.config().rows() + 70;
        specs.push_back(spec);
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 5), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

}  // namespace
}  // namespace heddle::test
