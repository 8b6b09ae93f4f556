// decode_mma on the host over queries and keys that stand in two tensors each, against the reference by the one
// criterion. A part of the counts is drawn, as in decode_on_host_test.cc.
#include <gtest/gtest.h>

#include <string_view>
#include <tuple>
#include <vector>

#include "engine/split_specs.h"
#include "heddle/dtype.h"
#include "kernels/portable/decode_specs.h"
#include "kernels/portable/host_decode.h"
#include "kernels/portable/specs.h"
#include "sample.h"

namespace heddle::test {
namespace {

template <class Specs>
void run_grid(int count, std::uint64_t seed, const std::vector<int>& lengths_there, bool by_warpgroups = false) {
  SplitSpecs<Specs> source(seed, Specs(seed, 40'000, 500));
  run_decode_grid_on_host({.count = count,
                           .seed = seed,
                           .gpus = by_warpgroups ? std::vector<std::string_view>{"h200"}
                                                 : std::vector<std::string_view>{"h200", "a100", "l4"},
                           .candidates = {0, 0, 1, 2, 3, 100},
                           .lengths_there = lengths_there,
                           .by_warpgroups = by_warpgroups},
                          [&] { return source.draw(); });
}
TEST(DecodeSplitRowsOnHost, AgreesWithTheReference) { run_grid<DecodeSpecs>(30, 20'000'000, {0, 1}); }
TEST(DecodeSplitRowsOnHost, Bytes) { run_grid<DecodeBytesSpecs>(20, 21'000'000, {0, 1}); }
TEST(DecodeSplitRowsOnHost, Rows) { run_grid<DecodeRowsSpecs>(20, 22'000'000, {0, 1}); }
TEST(DecodeSplitRowsOnHost, Prefixes) { run_grid<DecodePrefixSpecs>(20, 23'000'000, {0, 1}); }
TEST(DecodeSplitRowsOnHost, Wide) { run_grid<DecodeWideSpecs>(30, 24'000'000, {0, 1}); }
TEST(DecodeSplitRowsOnHost, WarpgroupsOfRows) {
  run_grid<WarpgroupSpecs<DecodeRowsSpecs>>(15, 25'000'000, {0, 1}, true);
}
TEST(DecodeSplitRowsOnHost, WideWarpgroups) { run_grid<DecodeWideSpecs>(15, 26'000'000, {0, 1}, true); }

CaseSpec latent(std::int64_t heads, DType of_keys, std::uint64_t seed) {
  CaseSpec spec = latent_in_two_tensors(seed);
  spec.batch = 2;
  spec.kv_heads = 1;
  spec.group = heads;
  spec.q_rows = 1;
  spec.kv_rows = 300;
  if (of_keys != DType::bf16) spec.k_dtype = spec.v_dtype = of_keys;
  spec.sequences = "lengths";
  spec.page_rows = 64;
  spec.with_lse = true;
  return spec;
}

TEST(DecodeSplitRowsOnHost, LatentAttention) {
  std::uint64_t seed = 0;
  for (const auto& [heads, of_keys, gpu] : {std::tuple{16, DType::bf16, "h200"},
                                            {128, DType::bf16, "h200"},
                                            {16, DType::bf16, "a100"},
                                            {20, DType::e4m3, "h200"},
                                            {16, DType::e5m2, "a100"}}) {
    if (!is_drawn(static_cast<unsigned>(++seed), 2)) continue;
    AttentionCase c(latent(heads, of_keys, seed));
    run_decode_on_host_and_judge(c, {.gpu = gpu, .gangs = 3, .lengths_there = seed % 2 == 1, .runs = 2});
  }
}

// Whole blocks of rows that follow each other, 16 bytes a copy: dense, and in pages.
TEST(DecodeSplitRowsOnHost, WholeBlocks) {
  for (const std::int64_t page_rows : {0, 16}) {
    CaseSpec spec = latent(4, DType::bf16, 3);
    spec.qk_dim = spec.v_dim = 64;
    spec.q_rest = 16;
    spec.k_rest = 24;
    spec.values_in_keys = false;
    spec.sequences = "whole";
    spec.page_rows = page_rows;
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "a100", .gangs = 2});
  }
}

// Queries alone, beside a cache of one tensor; and keys alone.
TEST(DecodeSplitRowsOnHost, OneOfBoth) {
  for (const bool of_queries : {true, false}) {
    CaseSpec spec = latent(16, DType::bf16, of_queries ? 1 : 2);
    (of_queries ? spec.k_rest : spec.q_rest) = 0;
    AttentionCase c(spec);
    run_decode_on_host_and_judge(c, {.gpu = "h200", .gangs = 2, .lengths_there = of_queries});
  }
}

// Each key is read once: as many bytes as from one tensor, and none of what the mask's bounds leave out.
TEST(DecodeSplitRowsOnHost, ReadsTheKeysWithinTheMasksBounds) {
  KeyMaskSpecs source(67'000, {40, 200, 420});
  run_decode_grid_on_host(
      {.count = 10, .seed = 6, .candidates = {0, 1}, .gangs = {1, 2, 3}, .runs = {1}, .poisons = true}, [&] {
        CaseSpec spec = source.draw();
        spec.q_rest = 24;
        spec.k_rest = 16;
        return spec;
      });
}

}  // namespace
}  // namespace heddle::test
