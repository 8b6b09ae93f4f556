// decode_mma with batch_invariant on the host: chunks of keys against the reference, and the same bits of a sequence in
// any batch. A part of the counts is drawn, as in decode_on_host_test.cc.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/batch_of_sequences.h"
#include "engine/deck.h"
#include "heddle/dtype.h"
#include "heddle/mods.h"
#include "kernels/portable/decode_specs.h"
#include "kernels/portable/host_decode.h"
#include "sample.h"

namespace heddle::test {
namespace {

/// Heads on one head of keys, whose first columns are the values, as warpgroups of Hopper compute them. `Spec`: a
/// CaseSpec, or an InvarianceTest's.
template <class Spec>
void be_latent(Spec& spec, std::int64_t heads) {
  spec.kv_heads = 1;
  spec.group = heads;
  spec.qk_dim = 320;
  spec.v_dim = 256;
  spec.values_in_keys = true;
}

/// Any cut of the line, another one each time.
ComputeBatch any_cut(std::string_view gpu, bool lengths_there, std::uint64_t seed) {
  auto gangs = std::make_shared<Deck<int>>(std::vector<int>{1, 2, 3, 5, 9, 16}, seed);
  return [=](const AttentionTensors& tensors, const AttentionOptions& options) {
    run_decode_on_host(tensors, options, {.gpu = gpu, .gangs = gangs->deal(), .lengths_there = lengths_there});
  };
}

// A sequence's bits are the same alone and in any batch, with lengths from the host and there.
TEST(DecodeOnHost, BatchInvariant) {
  for (const bool there : {false, true}) {
    InvarianceTest test = {.keys = 1400, .batches = takes_all() ? 12 : 4, .seed = there ? 1U : 2U};
    test.spec.kv_heads = 1;
    expect_invariant(test, any_cut("h200", there, test.seed));
  }
}
TEST(DecodeOnHost, BatchInvariantQueries) {
  InvarianceTest test = {.queries = 12, .keys = 500, .batches = takes_all() ? 12 : 3, .most = 11, .seed = 3};
  test.spec.mask = mods::causal();
  expect_invariant(test, any_cut("a100", true, test.seed));
}
// Tiles of more rows than a wave has add the same numbers in the same order.
TEST(DecodeRowsOnHost, BatchInvariant) {
  InvarianceTest test = {.queries = 64, .keys = 300, .batches = takes_all() ? 12 : 2, .most = 11, .seed = 4};
  test.spec.group = 1;
  expect_invariant(test, any_cut("h200", true, test.seed));
}
// Tiles of some queries: those of other sequences may have none in theirs.
TEST(DecodeRowsOnHost, BatchInvariantTilesOfQueries) {
  InvarianceTest test = {.queries = 21, .keys = 300, .batches = takes_all() ? 12 : 3, .most = 11, .seed = 8};
  test.spec.group = 3;
  test.spec.mask = mods::causal();
  expect_invariant(test, any_cut("h200", true, test.seed));
}
TEST(DecodeBytesOnHost, BatchInvariant) {
  InvarianceTest test = {.keys = 700, .batches = takes_all() ? 12 : 3, .most = 11, .seed = 5};
  test.spec.kv_dtype = DType::e4m3;
  expect_invariant(test, any_cut("h200", false, test.seed));
}
TEST(DecodeWideOnHost, BatchInvariant) {
  InvarianceTest test = {.keys = 800, .batches = takes_all() ? 12 : 2, .most = 11, .seed = 6};
  test.spec.kv_heads = 1;
  test.spec.group = 16;
  test.spec.qk_dim = 300;
  test.spec.v_dim = 256;
  test.spec.values_in_keys = true;
  expect_invariant(test, any_cut("h200", true, test.seed));
}
// Tiles of warpgroups have 64 rows, padded, so few heads and many give the same bits.
TEST(DecodeWideOnHost, BatchInvariantByWarpgroups) {
  InvarianceTest test = {.queries = 5, .keys = 600, .batches = takes_all() ? 12 : 2, .most = 6, .seed = 9};
  be_latent(test.spec, 16);
  expect_invariant(test, any_cut("h200", true, test.seed));
}
// Their chunks have 1024 keys: several of a group, and with 9500 keys of two groups.
TEST(DecodeWideOnHost, ChunksOfWarpgroupsAgreeWithTheReference) {
  struct Cell {
    std::int64_t keys, heads, queries;
    int gangs;
  };
  const std::vector<Cell> cells = {{3200, 16, 1, 1}, {3200, 5, 1, 2}, {2500, 40, 1, 1},  {2500, 8, 5, 3},
                                   {9500, 3, 1, 1},  {9500, 3, 1, 4}, {9500, 2, 1, 100}, {1030, 64, 1, 1}};
  for (std::size_t i = 0; i < cells.size(); ++i) {
    constexpr std::size_t kTwoGroups = 4;  // of one CTA
    if (!takes_all() && i != kTwoGroups && i != drawn_case(1, cells.size())) continue;
    const Cell& cell = cells[i];
    CaseSpec spec;
    spec.seed = i;
    spec.threads = 1;
    spec.batch = 2;
    spec.q_rows = cell.queries;
    spec.kv_rows = cell.keys;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
    spec.with_lse = true;
    be_latent(spec, cell.heads);
    spec.sequences = cell.keys > 9000 ? "whole" : "lengths";
    AttentionCase c(spec);
    c.options().batch_invariant = true;
    run_decode_on_host_and_judge(
        c, {.gpu = "h200", .by_warpgroups = true, .gangs = cell.gangs, .lengths_there = i % 2 == 0, .runs = 2});
  }
}
TEST(DecodeWideOnHost, BatchInvariantChunksOfWarpgroups) {
  InvarianceTest test = {.queries = 1, .keys = 3500, .batches = takes_all() ? 6 : 1, .most = 4, .seed = 10};
  be_latent(test.spec, 16);
  expect_invariant(test, any_cut("h200", true, test.seed));
}
// Bounds of a mask are a sequence's own, and units begin alike in pages of any size.
TEST(DecodeOnHost, BatchInvariantWindows) {
  InvarianceTest test = {.keys = 1500, .batches = takes_all() ? 12 : 3, .most = 11, .seed = 7};
  test.forms = {{.page_rows = 16}, {.page_rows = 5}, {}};
  test.spec.mask = leaf::q_idx() - leaf::kv_idx() < 400 || leaf::kv_idx() < 4;
  expect_invariant(test, any_cut("h200", true, test.seed));
}

/// Cases with chunks against the reference, over several cuts.
template <class Specs>
void expect_chunks_agree(Specs source, int count) {
  run_decode_grid_on_host(
      {.count = count, .gpus = {"h200", "a100", "l4"}, .gangs = {1, 2, 3, 5, 9, 20}, .batch_invariant = true},
      [&] { return source.draw(); });
}
TEST(DecodeOnHost, ChunksAgreeWithTheReference) { expect_chunks_agree(DecodeSpecs(8'000'000, 40'000, 1200), 30); }
TEST(DecodeRowsOnHost, ChunksAgreeWithTheReference) {
  expect_chunks_agree(DecodeRowsSpecs(8'100'000, 40'000, 300), 20);
}

}  // namespace
}  // namespace heddle::test
