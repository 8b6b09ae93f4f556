// decode_mma on the host, every thread of a CTA, against the reference by the one criterion. Each case is a compilation
// of a second or two, so a tenth of the counts below is drawn; HEDDLE_TEST_FULL=1 draws ten times the counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/deck.h"
#include "heddle/dtype.h"
#include "heddle/mods.h"
#include "kernels/portable/decode_specs.h"
#include "kernels/portable/host_decode.h"
#include "kernels/portable/host_kernel.h"
#include "sample.h"

namespace heddle::test {
namespace {

/// Any case, and any cut of the line.
template <class Specs>
void run_grid(int count, std::uint64_t seed, bool lengths_there) {
  Specs source(seed, 40'000, 500);
  // The last candidates have the most rows a tile.
  run_decode_grid_on_host({.count = count,
                           .seed = seed,
                           .gpus = {"h200", "a100", "l4"},
                           .candidates = {0, 0, 1, 2, 3, 100},
                           .lengths_there = {lengths_there}},
                          [&] { return source.draw(); });
}
TEST(DecodeOnHost, AgreesWithTheReference) { run_grid<DecodeSpecs>(20, 0, false); }
TEST(DecodeOnHost, LengthsThere) { run_grid<DecodeSpecs>(20, 1'000'000, true); }
TEST(DecodePrefixesOnHost, AgreeWithTheReference) { run_grid<DecodePrefixSpecs>(50, 9'000'000, false); }
TEST(DecodePrefixesOnHost, LengthsThere) { run_grid<DecodePrefixSpecs>(30, 9'500'000, true); }
TEST(DecodeBytesOnHost, AgreesWithTheReference) { run_grid<DecodeBytesSpecs>(20, 2'000'000, false); }
TEST(DecodeRowsOnHost, AgreesWithTheReference) { run_grid<DecodeRowsSpecs>(30, 4'000'000, false); }
TEST(DecodeRowsOnHost, LengthsThere) { run_grid<DecodeRowsSpecs>(10, 5'000'000, true); }
TEST(DecodeWideOnHost, AgreesWithTheReference) { run_grid<DecodeWideSpecs>(30, 6'000'000, false); }
TEST(DecodeWideOnHost, LengthsThere) { run_grid<DecodeWideSpecs>(10, 7'000'000, true); }
TEST(DecodeBytesOnHost, LengthsThere) { run_grid<DecodeBytesSpecs>(10, 3'000'000, true); }

/// One query of 4 heads on each of 2, D 64: the common case.
CaseSpec plain(std::int64_t keys, std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.batch = 3;
  spec.kv_heads = 2;
  spec.group = 4;
  spec.q_rows = 1;
  spec.kv_rows = keys;
  spec.qk_dim = spec.v_dim = 64;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.with_lse = true;
  return spec;
}

// Every number of 8 bits becomes the same number of f16, in each place of a word, with the chip's instruction and
// without.
TEST(DecodeBytesOnHost, EveryByteBecomesItsHalf) {
  using Convert = void (*)(unsigned word, unsigned* halves);
  for (const char* type : {"e4m3", "e5m2"}) {
    for (const char* architecture : {"800", "890"}) {
      const auto convert = reinterpret_cast<Convert>(compile_on_host(fmt::format(
          "#define __CUDA_ARCH__ {1}\n#include \"lanes.h\"\n#include \"portable/fragments/halves_of_eight_bits.cuh\"\n"
          "extern \"C\" void run_kernel(unsigned word, unsigned* halves) {{\n"
          "  using namespace heddle::portable;\n"
          "  const Halves neighbours = halves_of_neighbours<heddle::shared::Fp8::{0}>(word);\n"
          "  const Halves columns = halves_of_columns<heddle::shared::Fp8::{0}>(word);\n"
          "  halves[0] = neighbours.low, halves[1] = neighbours.high, halves[2] = columns.low, halves[3] = "
          "columns.high;\n"
          "}}\n",
          type, architecture)));
      const auto value_of = [&](unsigned byte) {
        const auto bits = static_cast<std::uint8_t>(byte);
        return std::string_view(type) == "e4m3" ? to_f32(e4m3{bits}) : to_f32(e5m2{bits});
      };
      for (unsigned byte = 0; byte < 256; ++byte) {
        const unsigned bytes[] = {byte, (byte + 77) & 255, (byte ^ 0x55) & 255, 255 - byte};
        unsigned word = 0, halves[4];
        for (unsigned i = 0; i < 4; ++i) word |= bytes[i] << 8 * i;
        convert(word, halves);
        constexpr unsigned kOrder[] = {0, 1, 2, 3, 0, 2, 1, 3};
        for (unsigned i = 0; i < 8; ++i) {
          const float expected = value_of(bytes[kOrder[i]]);
          const float found = to_f32(f16{static_cast<std::uint16_t>(halves[i / 2] >> 16 * (i % 2))});
          EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
              << type << " " << architecture << " " << bytes[kOrder[i]] << ": " << found << " " << expected;
          EXPECT_EQ(std::signbit(found), std::signbit(expected));
        }
      }
    }
  }
}

// f16 has fewer powers than bf16: each row of queries has its own.
TEST(DecodeBytesOnHost, QueriesOfAnyPower) {
  for (const DType type : {DType::e4m3, DType::e5m2}) {
    CaseSpec spec = plain(200, type == DType::e4m3 ? 1 : 2);
    spec.group = 8;
    spec.k_dtype = spec.v_dtype = type;
    AttentionCase c(spec);
    const TensorView q = c.q.view();
    for (std::int64_t head = 0; head < q.shape[1]; ++head) {
      constexpr int kPowers[] = {0, 60, 100, -100, -126, 20, -20, 115};
      for (std::int64_t i = 0; i < q.shape[0] * q.shape[3]; ++i) {
        auto* at = static_cast<bf16*>(q.data) + i / q.shape[3] * q.strides[0] + head * q.strides[1] + i % q.shape[3];
        *at = to_bf16(std::ldexp(static_cast<double>(to_f32(*at)), kPowers[head % 8]));
      }
    }
    run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 2});
  }
}

// Weights of sigmoid that f16 does not hold, beside queries of bf16, whose range holds them.
TEST(DecodeBytesOnHost, SmallWeights) {
  for (const bool there : {false, true}) {
    CaseSpec spec = plain(300, there ? 1 : 2);
    spec.k_dtype = spec.v_dtype = DType::e4m3;
    spec.score = "far_below";
    spec.normalizer = Normalizer::sigmoid;
    spec.with_lse = false;
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 2, .lengths_there = there});
  }
}

// Products of a plain score are scaled behind the maximum, also where CTAs merge rows.
TEST(DecodeOnHost, LargestScores) {
  CaseSpec spec = plain(300, 5);
  spec.with_max_scores = true;
  AttentionCase c(spec);
  run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 5});
}

/// One query of `heads` heads on one, of latent attention.
CaseSpec latent(std::int64_t keys, std::int64_t heads, std::uint64_t seed) {
  CaseSpec spec = plain(keys, seed);
  spec.kv_heads = 1;
  spec.group = heads;
  spec.qk_dim = 576;
  spec.v_dim = 512;
  spec.values_in_keys = true;
  return spec;
}

// A mask's run of keys ends within a block, whose other keys are poison: boxes bring zeros there.
TEST(DecodeWideOnHost, BoxesEndWithTheMasksRun) {
  for (const std::int64_t page_rows : {0, 64}) {
    CaseSpec spec = latent(200, 16, 9);
    spec.batch = 2;
    spec.q_rows = 2;
    spec.page_rows = page_rows;
    spec.layout = page_rows > 0 ? Layout::bshd : Layout::bhsd;
    spec.mask = "causal";
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 2, .runs = 1, .poisons = true});
  }
}

// A ring of blocks goes on across sequences without keys, which have a unit without a block.
TEST(DecodeWideOnHost, SequencesWithoutKeys) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    CaseSpec spec = latent(200, seed < 3 ? 4 : 70, seed);
    spec.batch = 8;
    spec.sequences = "lengths";
    AttentionCase c(spec);
    run_decode_on_host_and_judge(
        c, {.gpu = "h200", .gangs = seed % 2 == 0 ? 1 : 3, .lengths_there = seed % 2 == 0, .runs = 2});
  }
}

// More bytes of parts than one CTA merges alone: groups of CTAs merge theirs first. The last group is smaller.
TEST(DecodeWideOnHost, GroupsOfParts) {
  for (const int gangs : {13, 16}) {
    for (const char* gpu : {"h200", "a100"}) {
      CaseSpec spec = latent(1100, 16, static_cast<std::uint64_t>(gangs));
      spec.batch = 1;
      AttentionCase c(spec);
      run_decode_on_host_and_judge(c, {.gpu = gpu, .gangs = gangs, .runs = 2});
    }
  }
}
TEST(DecodeRowsOnHost, GroupsOfParts) {
  CaseSpec spec = plain(1500, 1);
  spec.batch = 2;
  spec.kv_heads = spec.group = 1;
  spec.q_rows = 64;
  spec.qk_dim = spec.v_dim = 128;
  AttentionCase c(spec);
  run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 30, .lengths_there = true, .runs = 2});
}

TEST(DecodeOnHost, EveryCutOfTheLine) {
  for (int gangs = 1; gangs <= 16; ++gangs) {
    if (!is_drawn(static_cast<unsigned>(gangs), 3)) continue;
    AttentionCase c(plain(600, static_cast<std::uint64_t>(gangs)));
    run_decode_on_host_and_judge(c, {.gpu = "h200", .candidate = gangs % 2, .gangs = gangs, .runs = 2});
  }
}

void run_every_length(DType of_keys) {
  for (std::int64_t keys = 1; keys <= 300; keys += takes_all() ? 1 : 13) {
    for (const bool there : {false, true}) {
      CaseSpec spec = plain(keys, static_cast<std::uint64_t>(keys));
      spec.k_dtype = spec.v_dtype = of_keys;
      spec.sequences = "lengths";
      AttentionCase c(spec);
      run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 2, .lengths_there = there});
    }
  }
}

TEST(DecodeOnHost, EveryLength) { run_every_length(DType::bf16); }
TEST(DecodeBytesOnHost, EveryLength) { run_every_length(DType::e5m2); }

// One gang walks all sequences, whose pages a list has one after the other.
TEST(DecodeOnHost, ListedPagesOfTheNextSequence) {
  for (const bool there : {false, true}) {
    CaseSpec spec = plain(200, 7);
    spec.sequences = "lengths";
    spec.page_rows = 16;
    spec.listed_pages = true;
    spec.layout = Layout::bshd;
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 1, .lengths_there = there});
  }
}

// More sequences than lanes: a wave finds its place by several looks.
TEST(DecodeOnHost, ManySequences) {
  for (const char* sequences : {"lengths", "packed"}) {
    for (const std::int64_t page : {0, 16}) {
      CaseSpec spec = plain(40, page == 0 ? 1 : 2);
      spec.batch = 70;
      spec.kv_heads = 1;
      spec.sequences = sequences;
      spec.page_rows = page;
      AttentionCase c(spec);
      run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 5, .lengths_there = true});
    }
  }
}

// Groups of sequences in two windows of lanes. The last candidates of prefixes have units of few keys.
TEST(DecodePrefixesOnHost, ManySequences) {
  for (const bool there : {false, true}) {
    CaseSpec spec = plain(150, there ? 5 : 6);
    spec.batch = 40;
    spec.kv_heads = 1;
    spec.group = 2;
    spec.sequences = "lengths";
    spec.prefixes = true;
    spec.mask = "causal_lower_right";
    spec.q_start = "aligned";
    AttentionCase c(spec);
    run_decode_on_host_and_judge(
        c, {.gpu = "h200", .candidate = there ? 2 : 5, .gangs = there ? 3 : 7, .lengths_there = there, .runs = 2});
  }
}

// Each row of shared keys has the draws and the factors of its own sequence, whichever tile comes last.
TEST(DecodePrefixesOnHost, WhatDiffersBySequence) {
  for (const unsigned seed : {7U, 8U, 9U, 10U}) {
    CaseSpec spec = plain(300, seed);
    spec.batch = 6;
    spec.kv_heads = 1;
    spec.k_dtype = spec.v_dtype = DType::e4m3;
    spec.descale = true;
    spec.weight = "dropout";
    spec.prefixes = true;
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 3, .lengths_there = seed % 2 == 0});
  }
}

// Keys that the bounds leave out are poison, and their bytes are not read.
void run_masks(int count, std::uint64_t seed, std::optional<DType> of_keys, bool wide = false) {
  KeyMaskSpecs source(seed, {40, 200, 420});
  run_decode_grid_on_host(
      {.count = count, .seed = 6, .candidates = {0, 0, 1}, .gangs = {1, 2, 3, 7}, .runs = {1}, .poisons = true}, [&] {
        CaseSpec spec = source.draw();
        if (of_keys) spec.k_dtype = spec.v_dtype = *of_keys;
        if (wide) spec.qk_dim = 576, spec.v_dim = 512, spec.values_in_keys = true;
        return spec;
      });
}

TEST(DecodeOnHost, ReadsTheKeysWithinTheMasksBounds) { run_masks(40, 50, {}); }
TEST(DecodeWideOnHost, ReadsTheKeysWithinTheMasksBounds) { run_masks(20, 65'000, {}, true); }
TEST(DecodeBytesOnHost, ReadsTheKeysWithinTheMasksBounds) { run_masks(15, 60'000, DType::e4m3); }

// Documents by their ids and windows of each head: of what the mask's bounds leave, blocks without a pair are not read
// either, by any head of keys alone. Rings go on across them, and across sequences. `most`: of the cases that are
// drawn.
void run_holes(int most, const std::vector<DecodeRun>& runs,
               const std::function<void(CaseSpec&, std::uint64_t)>& change = {}) {
  for (std::uint64_t seed = 1; seed <= 2 * runs.size(); ++seed) {
    if (!takes_all() && seed > static_cast<std::uint64_t>(most)) return;
    CaseSpec spec = plain(700, seed);
    spec.mask = seed % 2 == 1 ? "documents_by_id" : "window_by_head";
    spec.sequences = "lengths";
    spec.q_start = seed % 4 < 2 ? "aligned" : "none";
    spec.page_rows = seed % 3 == 0 ? 16 : seed % 3 == 1 ? 0 : 5;
    spec.layout = spec.page_rows > 0 ? Layout::bshd : Layout::bhsd;
    if (change) change(spec, seed);
    AttentionCase c(spec);
    DecodeRun run = runs[seed % runs.size()];
    run.lengths_there = run.poisons = true;
    run_decode_on_host_and_judge(c, run);
  }
}
TEST(DecodeOnHost, PassesOverBlocksWithoutAPair) {
  run_holes(3, {{.gpu = "h200", .gangs = 1}, {.gpu = "h200", .gangs = 4, .runs = 2}, {.gpu = "a100", .gangs = 3}});
}
// More units than lanes know at once.
TEST(DecodeOnHost, PassesOverBlocksOfLongSequences) {
  run_holes(1, {{.gpu = "h200", .gangs = 2}, {.gpu = "l4", .gangs = 1}}, [](CaseSpec& spec, std::uint64_t) {
    spec.batch = spec.kv_heads = 1;
    spec.sequences = "whole";
    spec.kv_rows = 128 * 70 + 5;
  });
}
TEST(DecodeRowsOnHost, PassesOverBlocksWithoutAPair) {
  run_holes(2,
            {{.gpu = "h200", .candidate = 100, .gangs = 2}, {.gpu = "h200", .gangs = 3}, {.gpu = "a100", .gangs = 2}},
            [](CaseSpec& spec, std::uint64_t seed) {
              spec.q_rows = seed % 2 == 0 ? 5 : 40;
              spec.group = seed % 2 == 0 ? 8 : 1;
              spec.batch = 2;
            });
}
TEST(DecodeWideOnHost, PassesOverBlocksWithoutAPair) {
  run_holes(1, {{.gpu = "a100", .gangs = 3}}, [](CaseSpec& spec, std::uint64_t seed) {
    const CaseSpec drawn = spec;
    spec = latent(500, 16, seed);
    spec.sequences = "lengths";
    spec.mask = drawn.mask;
  });
}
TEST(DecodeBytesOnHost, PassesOverBlocksWithoutAPair) {
  run_holes(1, {{.gpu = "h200", .gangs = 3}},
            [](CaseSpec& spec, std::uint64_t) { spec.k_dtype = spec.v_dtype = DType::e4m3; });
}

// Heads of a tile have factors of their own.
TEST(DecodeBytesOnHost, FactorsOfHeads) {
  CaseSpec spec = plain(150, 5);
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::e4m3;
  spec.descale = true;
  AttentionCase c(spec);
  run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 2});
}

// A block of a wave's keys lies in two pages. Entries behind a sequence's end are out of the pool, rows there NaN.
TEST(DecodeBytesOnHost, BlocksInTwoPages) {
  for (const bool there : {false, true}) {
    CaseSpec spec = plain(700, there ? 1 : 2);
    spec.k_dtype = spec.v_dtype = there ? DType::e5m2 : DType::e4m3;
    spec.page_rows = 16;
    spec.layout = Layout::bshd;
    spec.sequences = "lengths";
    spec.mask = there ? "last_window_and_first" : "";
    spec.q_start = "aligned";
    AttentionCase c(spec);
    run_decode_on_host_and_judge(
        c, {.gpu = "h200", .candidate = 100, .gangs = there ? 3 : 1, .lengths_there = there, .poisons = there});
  }
}

// More sequences than lanes, each with runs of its own.
TEST(DecodeOnHost, ManySequencesWithBounds) {
  for (const bool there : {false, true}) {
    CaseSpec spec = plain(there ? 60 : 160, there ? 3 : 4);
    spec.batch = 70;
    spec.kv_heads = 1;
    spec.sequences = "lengths";
    spec.mask = there ? "document_from" : "last_window_and_first";
    spec.q_start = "aligned";
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 5, .lengths_there = there, .poisons = !there});
  }
}

}  // namespace
}  // namespace heddle::test
