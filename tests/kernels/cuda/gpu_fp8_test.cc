// The cuda backend in 8 bits: attention over types, kernels, shapes, mods, sequences and descale factors against the
// reference, by the one criterion. Scores are mild, since P has little range there (docs/notes/hopper_fp8.md).
// HEDDLE_TEST_REDUCED=1 draws a part and small sizes; HEDDLE_TEST_BACKEND=cpu sends the same cases through the CPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

class GpuFp8 : public GpuTest {};

CaseSpec spec_of(std::uint64_t seed, std::int64_t qk_dim, std::int64_t v_dim, DType dtype = DType::e4m3) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.qk_dim = qk_dim;
  spec.v_dim = v_dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
  spec.layout = qk_dim % 16 == 0 && v_dim % 16 == 0 ? Layout::bshd : Layout::padded;
  return spec;
}

/// A case for this very kernel. Warpgroups of a tile see different blocks.
CaseSpec spec_of(std::uint64_t seed, const plan::ForwardSm90Kernel& kernel) {
  CaseSpec spec = spec_of(seed, kernel.qk_dim, kernel.v_dim);
  spec.rows = "given";
  spec.tile = {kernel.config().rows(), kernel.kv_block};
  spec.block = {shared::kWarpgroupRows, kernel.kv_block};
  return spec;
}

// One tile of one block, and of a few: what goes wrong here goes wrong in the transposition or in the products.
TEST_F(GpuFp8, OneTile) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 100'000;
  for (const std::int64_t dim : {128, 64, 256}) {
    for (const std::int64_t keys : {32, 64, 96, 300}) {
      CaseSpec spec = spec_of(++seed, dim, dim);
      spec.q_rows = 64;
      spec.kv_rows = keys;
      specs.push_back(spec);
    }
  }
  run_all(specs, 1);
}

// Each kernel of the table at the edges of its tile.
TEST_F(GpuFp8, EveryKernelAtTheEdgesOfItsTile) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 110'000;
  Deck<std::int64_t> edge({-1, 0, 1}, 1);
  Deck<int> tiles({1, 2, 3}, 2), ctas({0, 1, 2, 5}, 3);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    for (const char* mask : {"", "causal", "by_head"}) {
      CaseSpec spec = spec_of(++seed, kernel);
      spec.mask = mask;
      spec.ctas = ctas.deal();
      spec.group = 2;
      spec.descale = seed % 2 == 0;
      spec.q_rows = kernel.config().rows() * (1 + tiles.deal() % 2) + edge.deal();
      spec.kv_rows = kernel.kv_block * tiles.deal() + edge.deal();
      specs.push_back(spec);
    }
  }
  run_all(specs, 5);
}

// Every mixture of types, with and without factors.
TEST_F(GpuFp8, TypesAndFactors) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 120'000;
  const DType types[] = {DType::e4m3, DType::e5m2};
  for (const DType q : types) {
    for (const DType k : types) {
      for (const DType v : types) {
        for (const bool descale : {false, true}) {
          CaseSpec spec = spec_of(++seed, 128, 128);
          spec.q_dtype = q;
          spec.k_dtype = k;
          spec.v_dtype = v;
          spec.descale = descale;
          spec.batch = 2;
          spec.kv_heads = 2;
          spec.group = 3;
          spec.q_rows = 200;
          spec.kv_rows = 260;
          spec.spread = seed % 3 == 0 ? 3 : 1;
          specs.push_back(spec);
        }
      }
    }
  }
  run_all(specs, 3);
}

// Factors below 0, and 0, of some heads: what masks and ends of keys exclude stays excluded.
TEST_F(GpuFp8, FactorsThatAreNotPositive) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 125'000;
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const char* mask : {"", "causal", "dilated"}) {
      for (const char* score : {"", "softcap", "alibi"}) {
        CaseSpec spec = spec_of(++seed, dim, dim);
        spec.mask = mask;
        spec.score = score;
        spec.sinks = seed % 2 == 0 ? "normal" : "none";
        spec.group = 3;
        spec.q_rows = 200;
        spec.kv_rows = 260;
        specs.push_back(spec);
      }
    }
  }
  for (std::size_t i = 0; i < specs.size(); i += reduced() ? 5 : 1) {
    SCOPED_TRACE(specs[i].text());
    GpuCase signs(specs[i]);
    const Tensor factors = signs.host().keep(Tensor::empty(DType::f32, {1, 3}));
    const float values[] = {-0.7F, 0.0F, 0.9F};
    std::ranges::copy(values, static_cast<float*>(factors.data()));
    signs.options().q_descale = factors;
    signs.run_and_judge();
  }
}

// Head dims between the kernels' own, with NaN behind every row, and queries that attend nothing.
TEST_F(GpuFp8, HeadDims) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 130'000;
  Deck<std::int64_t> rows({64, 130, 200, 1}, 4), keys({16, 100, 129, 300}, 5);
  const std::vector<plan::HeadDims> all = {{16, 16},  {32, 48},   {64, 128},  {80, 80},   {96, 96},   {112, 144},
                                           {192, 64}, {192, 128}, {192, 192}, {208, 248}, {256, 256}, {1, 1},
                                           {20, 33},  {100, 100}, {130, 255}, {8, 256}};
  for (const plan::HeadDims& dims : all) {
    for (const char* mask : {"", "causal", "nothing"}) {
      ++seed;
      CaseSpec spec = spec_of(seed, dims.qk, dims.v, seed % 3 == 0 ? DType::e5m2 : DType::e4m3);
      spec.mask = mask;
      spec.batch = spec.group = 2;
      spec.q_rows = rows.deal();
      spec.kv_rows = keys.deal();
      specs.push_back(spec);
    }
  }
  run_all(specs, 7);
}

// Every form of a score_mod, which all see scores that factors have multiplied; weights; masks.
TEST_F(GpuFp8, Mods) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 140'000;
  Deck<std::string> mask({"", "causal", "by_head", "sliding_window"}, 6);
  Deck<std::int64_t> dims({128, 64, 256}, 7), keys({100, 300, 520}, 8);
  for (const std::string& score : score_names()) {
    for (int i = 0; i < 2; ++i) {
      CaseSpec spec = spec_of(++seed, dims.deal(), 64);
      spec.v_dim = spec.qk_dim;
      spec.score = score;
      spec.mask = mask.deal();
      spec.descale = i == 0;
      spec.batch = spec.group = 2;
      spec.q_rows = 200;
      spec.kv_rows = keys.deal();
      specs.push_back(spec);
    }
  }
  for (const char* weight : {"dropout", "zero"}) {
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
      CaseSpec spec = spec_of(++seed, dims.deal(), 64, dtype);
      spec.v_dim = spec.qk_dim;
      spec.weight = weight;
      spec.mask = mask.deal();
      spec.q_rows = 200;
      spec.kv_rows = keys.deal();
      specs.push_back(spec);
    }
  }
  run_all(specs, 5);
}

// Features that kernels of 16 bits also have: sinks, o of any type, masks by bits; and one that is left out here, a
// bias in tiles.
TEST_F(GpuFp8, SinksOutputsAndMasksByBits) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 180'000;
  Deck<std::string> mask({"", "causal", "dilated", "dilated_both_ways"}, 10),
      sequences({"whole", "lengths", "packed"}, 11),
      read({"documents", "long_documents_causal", "dilated_documents", "dense"}, 13);
  Deck<std::optional<DType>> output({std::nullopt, DType::f32, DType::e4m3, DType::f16, DType::e5m2, DType::f64}, 12);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    for (const char* sinks : {"normal", "large", "small", "mixed", "none"}) {
      CaseSpec spec = spec_of(++seed, kernel);
      spec.sinks = sinks;
      spec.o_dtype = output.deal();
      spec.mask = mask.deal();
      spec.sequences = sequences.deal();
      spec.descale = seed % 2 == 0;
      spec.batch = spec.kv_heads = spec.group = 2;
      spec.q_rows = kernel.config().rows() + 30;
      spec.kv_rows = 2 * kernel.kv_block + 30;
      specs.push_back(spec);
    }
  }
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const char* score : {"", "streamed_bias", "streamed_bias_f32"}) {
      CaseSpec spec = spec_of(++seed, dim, dim);
      spec.score = score;
      spec.mask = read.deal();
      spec.sinks = "normal";
      spec.o_dtype = output.deal();
      spec.descale = seed % 2 == 0;
      spec.batch = spec.group = 2;
      spec.q_rows = 200;
      spec.kv_rows = 300;
      specs.push_back(spec);
    }
  }
  run_all(specs, 9);
}

// Lengths of their own and packed batches; what lies past an end is NaN.
TEST_F(GpuFp8, SequencesThatDiffer) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 150'000;
  Deck<int> ctas({0, 1, 2, 5}, 9);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    for (const char* sequences : {"lengths", "packed"}) {
      for (const char* mask : {"", "causal_lower_right"}) {
        CaseSpec spec = spec_of(++seed, kernel);
        spec.sequences = sequences;
        spec.mask = mask;
        spec.q_start = *mask != '\0' ? "aligned" : "none";
        spec.ctas = ctas.deal();
        spec.descale = seed % 2 == 0;
        spec.batch = 4;
        spec.group = 2;
        spec.q_rows = 2 * kernel.config().rows() + 30;
        spec.kv_rows = 3 * kernel.kv_block + 30;
        specs.push_back(spec);
      }
    }
  }
  run_all(specs, 5);
}

/// Sequences with pages, as engines that generate text have them.
CaseSpec paged_spec(std::uint64_t seed, std::int64_t dim, std::int64_t page_rows) {
  CaseSpec spec = spec_of(seed, dim, dim, seed % 4 == 0 ? DType::e5m2 : DType::e4m3);
  spec.page_rows = page_rows;
  spec.descale = seed % 2 == 0;
  spec.q_start = "aligned";
  spec.batch = 3;
  spec.kv_heads = 2;
  spec.group = 4;
  return spec;
}

// Each kernel with pages by TMA: one warp asks for them, the other transposes values. Some CTAs have many tiles.
TEST_F(GpuFp8, PagesOfEveryKernel) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 190'000;
  Deck<int> ctas({0, 1, 2}, 14);
  Deck<std::int64_t> rows({8, 16, 64, 128, 256}, 15);
  Deck<std::string> sequences({"lengths", "packed", "whole"}, 16);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    for (const char* mask : {"", "causal_lower_right", "sliding_window"}) {
      CaseSpec spec = spec_of(++seed, kernel);
      spec.page_rows = rows.deal();
      spec.sequences = sequences.deal();
      spec.mask = mask;
      spec.q_start = spec.seed % 2 == 0 ? "aligned" : "none";
      spec.descale = seed % 3 != 0;
      spec.sinks = seed % 2 == 0 ? "normal" : "none";
      spec.ctas = ctas.deal();
      spec.batch = 3;
      spec.group = 2;
      spec.q_rows = kernel.config().rows() + 40;
      spec.kv_rows = 3 * kernel.kv_block + 30;
      specs.push_back(spec);
    }
  }
  run_all_and_in_place(specs, 7);
}

// Pages of any size (TMA takes those of 8 rows and more), with windows, sinks and the other crossings.
TEST_F(GpuFp8, Pages) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 191'000;
  Deck<std::string> mask({"causal_lower_right", "sliding_window", "", "dilated", "long_documents"}, 17),
      sequences({"lengths", "packed", "whole"}, 18), sinks({"normal", "mixed", "none"}, 19),
      score({"", "", "alibi", "softcap", "streamed_bias"}, 20), weight({"", "", "", "dropout"}, 21);
  Deck<std::int64_t> rows({1, 63, 65, 130, 200}, 22), keys({1, 16, 65, 129, 300, 520}, 23);
  Deck<std::optional<DType>> output({std::nullopt, std::nullopt, DType::f32, DType::e4m3}, 24);
  for (const std::int64_t page_rows : {1, 3, 8, 16, 24, 64, 128, 256}) {
    for (const std::int64_t dim : {64, 128, 192, 256, 80, 33}) {
      CaseSpec spec = paged_spec(++seed, dim, page_rows);
      spec.mask = mask.deal();
      spec.sequences = sequences.deal();
      spec.sinks = sinks.deal();
      spec.score = score.deal();
      spec.weight = weight.deal();
      spec.o_dtype = output.deal();
      spec.q_rows = rows.deal();
      spec.kv_rows = keys.deal();
      specs.push_back(spec);
    }
  }
  run_all_and_in_place(specs, 7);
}

// Tensors that TMA does not take, copied in words of 16 bytes to 1, and pages of rows that are gathered.
TEST_F(GpuFp8, CopiedTensorsAndGatheredRows) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 192'000;
  Deck<Layout> layouts({Layout::gaps, Layout::sliced, Layout::reversed, Layout::padded, Layout::expanded, Layout::bshd},
                       25);
  Deck<int> alignments({16, 8, 4, 2, 1}, 26);
  Deck<std::string> mask({"", "causal_lower_right", "sliding_window"}, 27),
      sequences({"whole", "lengths", "packed"}, 28);
  Deck<std::int64_t> pages({0, 0, 16, 7}, 29), rows({64, 130, 300}, 30), keys({100, 129, 300, 520}, 31);
  Deck<std::optional<DType>> output({std::nullopt, std::nullopt, DType::f32, DType::e4m3}, 32);
  const std::vector<plan::HeadDims> all = {{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 256}, {1, 1},
                                           {20, 33}, {61, 42},   {100, 100}, {130, 255}, {72, 8}};
  for (const plan::HeadDims& dims : all) {
    for (int i = 0; i < 5; ++i) {
      CaseSpec spec = paged_spec(++seed, dims.qk, pages.deal());
      spec.v_dim = dims.v;
      spec.layout = layouts.deal();
      spec.alignment = alignments.deal();
      spec.mask = mask.deal();
      spec.sequences = spec.page_rows == 0 ? sequences.deal() : "lengths";
      spec.o_dtype = output.deal();
      spec.q_rows = rows.deal();
      spec.kv_rows = keys.deal();
      specs.push_back(spec);
    }
  }
  for (const int ctas : {1, 2}) {
    for (const int alignment : {16, 4, 1}) {
      for (const auto& [dim, tile] : {std::pair{64, BlockSize{128, 128}}, {128, {128, 128}}, {256, {128, 96}}}) {
        CaseSpec spec = spec_of(++seed, dim, dim);
        spec.layout = alignment == 16 ? Layout::reversed : Layout::padded;
        spec.alignment = alignment;
        spec.rows = "given";
        spec.tile = tile;
        spec.block = BlockSize{64, tile.kv};
        spec.mask = "causal";
        spec.ctas = ctas;
        spec.batch = 2;
        spec.group = 3;
        spec.q_rows = spec.kv_rows = 300;
        specs.push_back(spec);
      }
    }
  }
  run_all_and_in_place(specs, 7);
}

// Lengths in the GPU's memory give the bits of the host's where blocks are classified alike; pages, and factors of each
// sequence, beside them.
TEST_F(GpuFp8, LengthsOnTheDevice) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 195'000;
  Deck<int> ctas({0, 1, 2, 5}, 33);
  Deck<std::int64_t> pages({0, 16, 64, 8}, 34);
  Deck<std::string> sinks({"none", "normal"}, 35);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    for (const char* sequences : {"lengths", "packed"}) {
      for (const char* mask : {"", "causal", "sliding_window"}) {
        CaseSpec spec = spec_of(++seed, kernel);
        spec.device_lengths = true;
        spec.sequences = sequences;
        spec.mask = mask;
        spec.page_rows = pages.deal();
        spec.sinks = sinks.deal();
        spec.descale = seed % 3 != 0;
        spec.ctas = ctas.deal();
        spec.batch = 4;
        spec.kv_heads = spec.group = 2;
        spec.q_rows = 2 * kernel.config().rows() + 30;
        spec.kv_rows = 3 * kernel.kv_block + 30;
        specs.push_back(spec);
      }
    }
  }
  const ScopedVariable nothing("HEDDLE_COPY_BYTES", "0");  // pages by TMA
  for_each_spec(some_if_reduced(specs, 11), [](CaseSpec spec) {
    GpuCase there(spec);
    there.run_and_judge();
    if (spec.mask == "sliding_window") return;  // a block may be that of rows past the end alone
    spec.device_lengths = false;
    GpuCase here(spec);
    here.run();
    EXPECT_EQ(outputs_of(there.host()), outputs_of(here.host()));
  });
}

// More tiles than CTAs, and rows of many steps.
TEST_F(GpuFp8, ManyTilesAndManySteps) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 160'000;
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const char* mask : {"", "causal"}) {
      CaseSpec many = spec_of(++seed, dim, dim);
      many.mask = mask;
      many.batch = reduced() ? 2 : 20;
      many.kv_heads = 2;
      many.group = 5;
      many.q_rows = 130;
      many.kv_rows = 66;
      specs.push_back(many);
      CaseSpec longer = spec_of(++seed, dim, dim);
      longer.mask = mask;
      longer.q_rows = reduced() ? 200 : 700;
      longer.kv_rows = reduced() ? 500 : 2100;
      specs.push_back(longer);
    }
  }
  run_all(specs, 1);
}

// Late keys far above the first ones: tiles are computed again, with the running maximum. Weights that vanish in 8 bits
// may then decide elements for which the largest ones meet a value of 0, so no row is judged by itself.
TEST_F(GpuFp8, TilesThatAreComputedAgain) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 170'000;
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
      CaseSpec spec = spec_of(++seed, dim, dim, dtype);
      spec.mask = seed % 2 == 0 ? "causal" : "";
      spec.q_rows = spec.kv_rows = reduced() ? 200 : 400;
      spec.late = 100;
      specs.push_back(spec);
    }
  }
  for_each_spec(specs, [](const CaseSpec& spec) {
    GpuCase late(spec);
    late.run();
    const AttentionCase& host = late.host();
    const AttentionTensors tensors = host.tensors();
    EXPECT_TRUE(host.o.gaps_untouched());
    const CheckReport report = check_attention(tensors.q, tensors.k, tensors.v, host.options(), tensors.o, tensors.lse);
    EXPECT_EQ(report.o.mismatched_specials, 0) << report.text();
    EXPECT_LE(report.o.max_error, 2 * report.o.max_allowed) << report.text();
    EXPECT_LE(report.o.mean_error, 2 * report.o.mean_allowed) << report.text();
    EXPECT_TRUE(report.lse->passed) << report.text();
  });
}

}  // namespace
}  // namespace heddle::test
