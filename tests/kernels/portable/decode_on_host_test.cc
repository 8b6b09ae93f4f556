// decode_mma on the host, every thread of a CTA, against the reference by the one criterion. Each case is a compilation
// of a second or two, so a fifth of the counts below is drawn; HEDDLE_TEST_FULL=1 draws ten times the counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/deck.h"
#include "kernels/portable/decode_specs.h"
#include "kernels/portable/host_decode.h"
#include "sample.h"

namespace heddle::test {
namespace {

int scaled(int count) {
  if (takes_all()) return count * 10;
  return std::max(1, count / (is_reduced() ? 10 : 5));
}

/// Any case, and any cut of the line.
void run_grid(int count, std::uint64_t seed, bool lengths_there) {
  DecodeSpecs source(seed, 40'000, 500);
  Deck<int> gangs({1, 2, 3, 5, 9}, seed + 1), candidates({0, 0, 1, 2, 3}, seed + 2), runs({1, 2}, seed + 3);
  Deck<std::string_view> gpus({"h200", "a100", "l4"}, seed + 4);
  for (int i = 0; i < count; ++i) {
    const CaseSpec spec = source.draw();
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = gpus.deal(),
                                     .candidate = candidates.deal(),
                                     .gangs = gangs.deal(),
                                     .lengths_there = lengths_there,
                                     .runs = runs.deal()});
  }
}
TEST(DecodeOnHost, AgreesWithTheReference) { run_grid(scaled(20), 0, false); }
TEST(DecodeOnHost, LengthsThere) { run_grid(scaled(20), 1'000'000, true); }

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

TEST(DecodeOnHost, EveryCutOfTheLine) {
  for (int gangs = 1; gangs <= 16; ++gangs) {
    if (!is_drawn(static_cast<unsigned>(gangs), 3)) continue;
    AttentionCase c(plain(600, static_cast<std::uint64_t>(gangs)));
    run_decode_on_host_and_judge(c, {.gpu = "h200", .candidate = gangs % 2, .gangs = gangs, .runs = 2});
  }
}

TEST(DecodeOnHost, EveryLength) {
  for (std::int64_t keys = 1; keys <= 300; keys += takes_all() ? 1 : 13) {
    for (const bool there : {false, true}) {
      CaseSpec spec = plain(keys, static_cast<std::uint64_t>(keys));
      spec.sequences = "lengths";
      AttentionCase c(spec);
      run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 2, .lengths_there = there});
    }
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

// Keys that the bounds leave out are poison, and their bytes are not read.
TEST(DecodeOnHost, ReadsTheKeysWithinTheMasksBounds) {
  KeyMaskSpecs source(50, {40, 200, 420});
  Deck<int> gangs({1, 2, 3, 7}, 7), candidates({0, 0, 1}, 8), there({0, 1}, 9);
  for (int i = 0; i < scaled(40); ++i) {
    const CaseSpec spec = source.draw();
    SCOPED_TRACE(spec.text());
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200",
                                     .candidate = candidates.deal(),
                                     .gangs = gangs.deal(),
                                     .lengths_there = there.deal() == 1,
                                     .poisons = spec.mask != "document_from"});
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
