// The grid of the cuda backend: attention over shapes, types, layouts, masks, kernels and scores against the reference,
// by the one criterion. HEDDLE_TEST_REDUCED=1 draws a tenth and small sizes; HEDDLE_TEST_BACKEND=cpu sends the same
// cases through the CPU.
#include "kernels/cuda/gpu_grid.h"

#include <gtest/gtest.h>

#include <optional>

namespace heddle::test {
namespace {

TEST_F(GpuGrid, AgreesWithTheReference) {
  SpecSource source;
  std::vector<CaseSpec> specs;
  for (int i = 0; i < scaled(200); ++i) specs.push_back(source.draw());
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Every score and weight mod, alone and together, with few masks: each combination is a compilation of seconds.
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
    // The weights of the 2 % that are left of a row may be too small for f16, as above.
    if (spec.weight == "drops_most") spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
    spec.mask = mask.deal();
    // Such blocks fit one kernel alone, which may have no registers for the mods.
    if (spec.block && spec.block->kv % 64 != 0) build_rows(spec);
    specs.push_back(spec);
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// A bias in tiles, by every kernel that has room for them, with warpgroups of a tile on different blocks; and rows in
// which nothing attends, whose term is NaN.
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
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90WideCaptureKernels) {
    for (const auto& [sequence, masked] :
         {std::pair{"whole", "causal"}, {"lengths", "by_head"}, {"packed", "sliding_window"}}) {
      CaseSpec spec = spec_of(kernel, ++seed);
      if (seed % 2 == 0) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      spec.score = "streamed_bias_f32";
      spec.sequences = sequence;
      spec.mask = masked;
      spec.ctas = ctas.deal();
      spec.batch = 2;
      spec.q_rows = 2 * kernel.config().rows() + 30;
      spec.kv_rows = 6 * kernel.kv_block + 30;
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

// Scores that are all near 0, of which some and of which most are near the cap. Only full blocks after a row's first
// ones may take the polynomial; far off it would give infinities, and its tile would be repeated without.
TEST_F(GpuGrid, ScoresNearAndFarFromACap) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 97'500;
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const double spread : {0.05, 1.0, 4.0}) {
      CaseSpec spec;
      spec.seed = ++seed;
      spec.threads = 1;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      spec.qk_dim = spec.v_dim = dim;
      spec.score = "softcap";
      spec.spread = spread;
      spec.q_rows = 200;
      spec.kv_rows = 1000;
      specs.push_back(spec);
    }
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// A tile is asked for again as soon as it has been read. Were it given back with a load under way, a row would see
// another tile's numbers now and then: in other places each run.
TEST_F(GpuGrid, StreamedTilesAreReadBeforeTheNextOnesCome) {
  const bool small = reduced() || gpu_backend() == BackendChoice::cpu;
  for (const std::int64_t dim : {64, 128}) {
    for (const char* score : {"streamed_bias", "streamed_bias_f32"}) {
      CaseSpec spec;
      spec.seed = 95'000;
      spec.score = score;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      spec.qk_dim = spec.v_dim = dim;
      spec.batch = 2;
      spec.kv_heads = small ? 1 : 8;
      spec.q_rows = spec.kv_rows = small ? 256 : 2048;
      SCOPED_TRACE(spec.text());
      GpuCase c(spec);
      const AttentionPlan plan(c.tensors(), c.options_there());
      c.upload();
      std::optional<Outputs> first;
      for (int i = 0; i < (small ? 2 : 30); ++i) {
        plan.run(c.tensors(), {.workspace = c.workspace()});
        c.download();
        const Outputs outputs = outputs_of(c.host());
        if (!first) first = outputs;
        ASSERT_TRUE(outputs == *first) << "run " << i;
      }
    }
  }
}

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

// Sequences differ: the producer and every warpgroup see the end of each.
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

// All head dims, in memory without a gap (where TMA takes that) and with NaN behind every row, which no kernel may read
// or overwrite; also with queries that attend nothing.
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
