// Tiles of many rows on Hopper, whose warpgroups have keys and values of their own each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "families/decode_mma/decode_offers.h"
#include "families/decode_mma/shared/decode_mma_memory.h"

namespace heddle::test::decode {
namespace {

using shared::ForwardMmaConfig;

int count_by_warpgroups(const HopperCall& call, std::string_view gpu = "h200") {
  int count = 0;
  for (const plan::Choice& choice : offered(call, gpu)) {
    count += choice.plan.part<ForwardMmaConfig>().by_warpgroups() ? 1 : 0;
  }
  return count;
}

bool are_first(const HopperCall& call) { return first_of(call).by_warpgroups(); }

/// A batch of 16 sequences.
HopperCall many(std::int64_t queries, std::int64_t dim = 128) {
  HopperCall call = few(queries, 8192, dim);
  call.batch = 16;
  return call;
}

TEST(DecodeMmaWarpgroups, HaveTilesOf64Rows) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    const std::vector<plan::Choice> choices = offered(many(16, dim));
    const auto& first = choices.front().plan.part<ForwardMmaConfig>();
    EXPECT_TRUE(first.by_warpgroups() && !first.wide()) << dim;
    EXPECT_EQ(first.live_rows, 64);
    EXPECT_EQ(first.rows(), 64);
    EXPECT_EQ(first.rings_of_blocks(), 2);
    EXPECT_EQ(first.block_keys(), dim > 128 ? 32 : 64);
    EXPECT_EQ(first.wave_columns(), dim);
    EXPECT_LE(shared::decode_mma_memory(first).bytes, caps_of("h200").shared_memory_bytes);
    const shared::ForwardMmaMemory memory = shared::forward_mma_memory(first);
    for (const int at : {memory.v, memory.q, memory.stage, memory.wave}) EXPECT_EQ(at % 1024, 0);
    EXPECT_FALSE(choices.front().plan.yields);
    EXPECT_FALSE(choices.back().plan.part<ForwardMmaConfig>().by_warpgroups());
    EXPECT_LT(choices.front().plan.predicted->seconds, choices.back().plan.predicted->seconds);
    EXPECT_THAT(choices.front().plan.rejected.back(), testing::HasSubstr("slower than wgmma does"));
  }
}

// More queries than a wave's rows are computed so however few units there are; more rows, where CTAs have many.
TEST(DecodeMmaWarpgroups, GoFirstWhereTheyAreFaster) {
  EXPECT_FALSE(are_first(few(32, 4096, 128)));
  EXPECT_TRUE(are_first(few(33, 4096, 128)));
  EXPECT_FALSE(are_first(few(16, 4096, 256)));
  EXPECT_TRUE(are_first(few(17, 4096, 256)));
  EXPECT_TRUE(are_first(many(16)));
  EXPECT_FALSE(are_first(few(16)));  // two sequences: the end of a tile counts more
}

TEST(DecodeMmaWarpgroups, AreNotForOtherProblems) {
  HopperCall bytes = many(16), invariant_rows = invariant(many(16));
  bytes.kv_dtype = DType::e4m3;
  EXPECT_GT(count_by_warpgroups(many(16)), 0);
  EXPECT_EQ(count_by_warpgroups(many(10)), 0);  // 40 rows of a head of keys: memory's time
  EXPECT_GT(count_by_warpgroups(many(11)), 0);
  EXPECT_EQ(count_by_warpgroups(bytes), 0);
  EXPECT_EQ(count_by_warpgroups(invariant_rows), 0);
  EXPECT_EQ(count_by_warpgroups(many(16, 80)), 0);
  EXPECT_EQ(count_by_warpgroups(many(16), "a100"), 0);
}

// TMA brings whole blocks of one page, of tensors that it takes.
TEST(DecodeMmaWarpgroups, TakeBlocksOfKeysByTma) {
  HopperCall apart = latent(16);
  apart.k_rest = 64;
  EXPECT_TRUE(first_of(latent(16)).boxes);
  EXPECT_TRUE(first_of(invariant(latent())).boxes);
  EXPECT_TRUE(first_of(apart).boxes);
  EXPECT_FALSE(first_of(many(16)).boxes);
  EXPECT_FALSE(first_of(latent(16), "a100").boxes);
  for (const int page_rows : {16, 64, 96, 128}) {
    problem::AttentionProblem paged = latent(16).problem();
    paged.page_rows = page_rows;
    EXPECT_EQ(first_of(paged, latent(16).tensors(), {}).boxes, page_rows % 64 == 0) << page_rows;
  }
}

// A block begins where a run of keys does, or, in a page, before it: boxes would bring the keys before the run, too.
TEST(DecodeMmaWarpgroups, TakeRunsOfKeysByTmaWhereBlocksBeginWithThem) {
  HopperCall first_keys = latent(16), window = latent(16);
  first_keys.mask = mods::causal();
  window.mask = leaf::kv_idx() > leaf::kv_len() - Expr(100);
  for (const HopperCall* call : {&first_keys, &window}) {
    EXPECT_TRUE(first_of(*call).bounded && first_of(*call).takes_turns());
    EXPECT_TRUE(first_of(*call).boxes);
    EXPECT_EQ(first_of(invariant(*call)).boxes, call == &first_keys);  // its units begin at multiples of a block
    problem::AttentionProblem paged = call->problem();
    paged.page_rows = 64;
    EXPECT_EQ(first_of(paged, call->tensors(), {}).boxes, call == &first_keys);
  }
}

TEST(DecodeMmaWarpgroups, CopyKeysThatTmaDoesNotTake) {
  const problem::AttentionProblem problem = latent(16).problem();
  AttentionTensors far = latent(16).tensors();
  far.k.strides[2] = far.v.strides[2] = std::int64_t{1} << 39;  // 2^40 bytes
  EXPECT_TRUE(first_of(problem, far, {}).takes_turns());
  EXPECT_FALSE(first_of(problem, far, {}).boxes);
  // The last columns of all sequences stand in one entry, those before in entries of their own.
  HopperCall apart = latent(16);
  apart.k_rest = 64;
  AttentionOptions options = apart.all_options();
  options.k_rest->shape[0] = 1;
  EXPECT_FALSE(first_of(apart.problem(), apart.tensors(), options).boxes);
}

}  // namespace
}  // namespace heddle::test::decode
