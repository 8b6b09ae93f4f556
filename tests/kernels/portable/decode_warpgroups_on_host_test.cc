// decode_mma by warpgroups that have keys and values of their own, on the host: tiles of many rows, and of rows of
// sequences that share keys. Products happen as late as they may (host/ptx/wgmma.cuh). A part of the counts is drawn,
// as in decode_on_host_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "heddle/dtype.h"
#include "kernels/portable/decode_specs.h"
#include "kernels/portable/host_decode.h"
#include "sample.h"

namespace heddle::test {
namespace {

template <class Specs>
void run_grid(int count, std::uint64_t seed, bool lengths_there) {
  WarpgroupSpecs<Specs> source(seed, 60'000, 600);
  run_decode_grid_on_host(
      {.count = count, .seed = seed, .candidates = {0, 0, 1}, .lengths_there = {lengths_there}, .by_warpgroups = true},
      [&] { return source.draw(); });
}
TEST(DecodeWarpgroupsOnHost, Rows) { run_grid<DecodeRowsSpecs>(30, 10'000'000, false); }
TEST(DecodeWarpgroupsOnHost, RowsOfLengthsThere) { run_grid<DecodeRowsSpecs>(15, 11'000'000, true); }
TEST(DecodeWarpgroupsOnHost, Prefixes) { run_grid<DecodePrefixSpecs>(30, 12'000'000, false); }
TEST(DecodeWarpgroupsOnHost, PrefixesOfLengthsThere) { run_grid<DecodePrefixSpecs>(20, 13'000'000, true); }

/// So many queries of 4 heads on each of 2.
CaseSpec rows_of(std::int64_t queries, std::int64_t keys, std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.batch = 3;
  spec.kv_heads = 2;
  spec.group = 4;
  spec.q_rows = queries;
  spec.kv_rows = keys;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.with_lse = true;
  return spec;
}

// A warpgroup without keys of a unit goes on to the next one; so does one of a sequence without keys.
TEST(DecodeWarpgroupsOnHost, EveryLength) {
  for (std::int64_t keys = 1; keys <= 400; keys += takes_all() ? 1 : 57) {
    CaseSpec spec = rows_of(12, keys, static_cast<std::uint64_t>(keys));
    spec.batch = 4;
    spec.kv_heads = 1;
    spec.sequences = "lengths";
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200",
                                     .by_warpgroups = true,
                                     .gangs = keys % 2 == 0 ? 1 : 3,
                                     .lengths_there = keys % 3 == 0,
                                     .runs = 2});
  }
}

// Keys that a mask's bounds leave out are poison, and their bytes are not read.
TEST(DecodeWarpgroupsOnHost, ReadTheKeysWithinTheMasksBounds) {
  KeyMaskSpecs source(66'000, {40, 200, 420});
  run_decode_grid_on_host(
      {.count = 10, .seed = 6, .gangs = {1, 2, 3, 7}, .runs = {1}, .by_warpgroups = true, .poisons = true}, [&] {
        CaseSpec spec = source.draw();
        spec.qk_dim = spec.v_dim = 128;
        spec.kv_heads = 1;
        spec.group = 8;
        spec.q_rows = 8;
        return spec;
      });
}

// Nor are blocks without a pair, of each warpgroup alone.
TEST(DecodeWarpgroupsOnHost, PassOverBlocksWithoutAPair) {
  CaseSpec spec = rows_of(12, 900, 3);
  spec.batch = 2;
  spec.kv_heads = 1;
  spec.sequences = "lengths";
  spec.q_start = "aligned";
  spec.mask = "documents_by_id";
  AttentionCase c(spec);
  run_decode_on_host_and_judge(
      c, {.gpu = "h200", .by_warpgroups = true, .gangs = 2, .lengths_there = true, .runs = 2, .poisons = true});
}

// The first kernels of more queries than a wave's rows are those by warpgroups.
TEST(DecodeWarpgroupsOnHost, AreTheFirstKernels) {
  AttentionCase c(rows_of(33, 300, 1));
  EXPECT_THAT(run_decode_on_host(c.tensors(), c.options(), {.gpu = "h200"}), testing::HasSubstr("warpgroup"));
}

}  // namespace
}  // namespace heddle::test
