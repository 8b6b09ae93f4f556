// Two kernels of decode_mma on the host, one after the other: that of keys which several sequences share, and that of
// the sequences' own keys. A part of the counts is drawn, as in decode_on_host_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "heddle/dtype.h"
#include "kernels/portable/decode_specs.h"
#include "kernels/portable/host_decode.h"
#include "sample.h"

namespace heddle::test {
namespace {

void run_grid(int count, std::uint64_t seed, bool lengths_there) {
  SharedKeysSpecs source(seed, 60'000, 600);
  run_decode_grid_on_host(
      {.count = count, .seed = seed, .candidates = {0, 0, 1}, .lengths_there = {lengths_there}, .of_two_kernels = true},
      [&] { return source.draw(); });
}
TEST(DecodeSharedKeysOnHost, AgreeWithTheReference) { run_grid(40, 14'000'000, false); }
TEST(DecodeSharedKeysOnHost, LengthsThere) { run_grid(30, 15'000'000, true); }

CaseSpec sequences_of(std::int64_t batch, std::int64_t keys, std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.batch = batch;
  spec.kv_heads = 1;
  spec.group = 4;
  spec.q_rows = 1;
  spec.kv_rows = keys;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.prefixes = true;
  spec.sequences = "lengths";
  spec.with_lse = true;
  return spec;
}

// There are two kernels where TMA brings the shared keys.
TEST(DecodeSharedKeysOnHost, OnHopper) {
  CaseSpec spec = sequences_of(9, 300, 1);
  spec.page_rows = 16;
  spec.layout = Layout::bshd;
  AttentionCase c(spec);
  const auto name_on = [&](std::string_view gpu) {
    return run_decode_on_host(c.tensors(), c.options(), {.gpu = gpu, .of_two_kernels = true});
  };
  EXPECT_THAT(name_on("h200"), testing::HasSubstr("elsewhere"));
  EXPECT_THAT(name_on("a100"), testing::Not(testing::HasSubstr("elsewhere")));
}

// Sequences of several windows of lanes, tiles of which gangs share some, have some whole, and have many.
TEST(DecodeSharedKeysOnHost, ManySequences) {
  for (const int gangs : {1, 2, 5, 16}) {
    CaseSpec spec = sequences_of(gangs == 5 ? 130 : 70, 260, static_cast<std::uint64_t>(gangs));
    spec.page_rows = gangs % 2 == 0 ? 16 : 0;
    if (spec.page_rows > 0) spec.layout = Layout::bshd;
    AttentionCase c(spec);
    run_decode_on_host_and_judge(
        c, {.gpu = "h200", .of_two_kernels = true, .gangs = gangs, .lengths_there = gangs != 2, .runs = 2});
  }
}

}  // namespace
}  // namespace heddle::test
