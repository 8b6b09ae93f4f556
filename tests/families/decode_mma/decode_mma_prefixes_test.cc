// Sequences that share their first keys: rows of a tile, bytes that count once, and why groups are not used.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "families/decode_mma/decode_calls.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_keys.h"
#include "families/decode_mma/decode_mma_shared_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"

namespace heddle::test {
namespace {

using shared::ForwardMmaConfig;

/// Sequences whose first keys are those of their group, if it is not -1.
problem::AttentionProblem with_prefixes(const HopperCall& call, const std::vector<std::int64_t>& groups,
                                        std::int64_t keys) {
  problem::AttentionProblem problem = call.problem();
  problem.with_prefixes = true;
  problem.prefix_group = groups;
  problem.prefix_len.assign(groups.size(), keys);
  return problem;
}
std::vector<plan::Choice> offered(const problem::AttentionProblem& problem, const HopperCall& call) {
  return plan::decode_mma(problem, call.tensors(), {}, caps_of("h200"), [](BlockSize) { return nullptr; });
}
/// Without those of two kernels.
std::vector<plan::Choice> of_one_kernel(const problem::AttentionProblem& problem, const HopperCall& call) {
  std::vector<plan::Choice> choices = offered(problem, call);
  std::erase_if(choices,
                [](const plan::Choice& each) { return each.plan.part<ForwardMmaConfig>().shares_elsewhere(); });
  return choices;
}

// Shared keys by a kernel of their own, where TMA brings them.
TEST(DecodeMmaPrefixes, TwoKernels) {
  HopperCall call = few(1, 8704);
  call.batch = 64;
  const problem::AttentionProblem problem = with_prefixes(call, std::vector<std::int64_t>(64, 3), 8192);
  const plan::Plan plan = offered(problem, call).front().plan;
  const auto& own = plan.part<ForwardMmaConfig>();
  ASSERT_TRUE(own.shares_elsewhere());
  EXPECT_EQ(own.live_rows, 4);
  EXPECT_EQ(own.own_rows(), 4);
  EXPECT_EQ(own.prefix_sequences, 32);
  EXPECT_EQ(own.ctas, 2);
  EXPECT_EQ(own.waves(), 4);
  EXPECT_EQ(plan.access,
            (std::vector<std::string>{"keys that sequences of a prefix_group share are read once for those of 32 "
                                      "neighbours, by a kernel that runs before that of their own keys"}));
  const ForwardMmaConfig shared = plan::shared_keys_config(own);
  EXPECT_TRUE(shared.shares_alone() && shared.by_warpgroups() && shared.boxes);
  EXPECT_EQ(shared.live_rows, 128);
  EXPECT_EQ(shared.own_rows(), 4);
  EXPECT_EQ(shared.rows(), 128);
  EXPECT_EQ(shared.threads(), 32 * (8 + 4));
  EXPECT_LE(shared::decode_mma_memory(shared).bytes, caps_of("h200").shared_memory_bytes);
  // Few sequences occupy one warpgroup.
  call.batch = 8;
  const plan::Plan few_sequences =
      offered(with_prefixes(call, std::vector<std::int64_t>(8, 3), 8192), call).front().plan;
  EXPECT_EQ(plan::shared_keys_config(few_sequences.part<ForwardMmaConfig>()).row_waves, 4);
  // Units of both kernels: own ones of 64 keys, of two tiles of 32 sequences.
  const plan::DecodeKeys keys = plan::decode_mma_keys(problem, plan::portable_mods(problem), {}, own);
  EXPECT_EQ(keys.shared_units, 2 * 8192 / own.kv_block);
  EXPECT_EQ(keys.again, 8192 / own.kv_block);
  EXPECT_EQ(keys.units - keys.shared_units, 64 * 512 / own.kv_block);
}

// Rows of a box, whatever the pages; and where there is none.
TEST(DecodeMmaPrefixes, BoxesOfPages) {
  HopperCall call = few(1, 8704);
  call.batch = 64;
  problem::AttentionProblem problem = with_prefixes(call, std::vector<std::int64_t>(64, 3), 8192);
  const auto first = [&] { return offered(problem, call).front().plan.part<ForwardMmaConfig>(); };
  for (const auto& [page_rows, box_rows] :
       {std::pair{0, 64}, {8, 8}, {16, 16}, {24, 8}, {64, 64}, {96, 32}, {256, 64}}) {
    problem.page_rows = page_rows;
    ASSERT_TRUE(first().shares_elsewhere()) << page_rows;
    EXPECT_EQ(plan::shared_keys_config(first()).box_rows(), box_rows) << page_rows;
  }
  problem.page_rows = 4;
  EXPECT_FALSE(first().shares_elsewhere());
  problem.page_rows = 0;
  problem.batch_invariant = true;
  EXPECT_FALSE(first().prefixed());
}

TEST(DecodeMmaPrefixes, RowsOfSeveralSequences) {
  HopperCall call = few(1, 8704);
  call.batch = 64;
  const problem::AttentionProblem problem = with_prefixes(call, std::vector<std::int64_t>(64, 3), 8192);
  const std::vector<plan::Choice> choices = of_one_kernel(problem, call);
  std::vector<int> rows;
  for (const plan::Choice& choice : choices) {
    const auto& config = choice.plan.part<ForwardMmaConfig>();
    EXPECT_LE(shared::decode_mma_memory(config).bytes, caps_of("h200").shared_memory_bytes);
    if (!config.prefixed()) continue;
    if (rows.empty() || rows.back() != config.live_rows) rows.push_back(config.live_rows);
    EXPECT_TRUE(config.by_sequence && config.counts_units());
    EXPECT_EQ(config.own_rows(), 4);
    EXPECT_EQ(config.packed_heads, 4);
    EXPECT_EQ(config.live_rows, 4 * config.prefix_sequences);
    EXPECT_LE(config.live_rows, config.rows());
    EXPECT_EQ(config.wave_keys(), config.by_warpgroups() ? 64 : 16);
  }
  EXPECT_EQ(rows, (std::vector<int>{32, 64, 16, 64}));
  EXPECT_FALSE(choices.front().plan.part<ForwardMmaConfig>().by_warpgroups());
  EXPECT_FALSE(choices.front().plan.yields);
  EXPECT_EQ(choices.front().plan.access,
            (std::vector<std::string>{"keys that sequences of a prefix_group share are read "
                                      "once for those of 8 neighbours"}));
  EXPECT_EQ(choices.back().plan.access,
            (std::vector<std::string>{"prefix_group is not used: each sequence's keys are read for it alone"}));
  // A tile has no more rows than two sequences have.
  const problem::AttentionProblem two = with_prefixes(few(), {0, 0}, 8192);
  EXPECT_EQ(of_one_kernel(two, few()).front().plan.part<ForwardMmaConfig>().prefix_sequences, 2);
}

// Bytes of the group's keys count once; gangs walk a tile of them for every so many sequences.
TEST(DecodeMmaPrefixes, CountSharedKeysOnce) {
  HopperCall call = few(1, 8704);
  call.batch = 64;
  const problem::AttentionProblem all = with_prefixes(call, std::vector<std::int64_t>(64, 3), 8192);
  const plan::Plan plan = of_one_kernel(all, call).front().plan;
  const auto& config = plan.part<ForwardMmaConfig>();
  EXPECT_DOUBLE_EQ(plan.predicted->bytes, (8192.0 + 64 * 512) * 8 * 256 * 2);
  const auto keys_of = [&](const problem::AttentionProblem& problem) {
    return plan::decode_mma_keys(problem, plan::portable_mods(problem), {}, config);
  };
  const std::int64_t block = config.kv_block;
  EXPECT_EQ(keys_of(all).shared_units, 8 * 8192 / block);
  EXPECT_EQ(keys_of(all).units, 8 * 8192 / block + 64 * 512 / block);
  EXPECT_EQ(keys_of(all).again, 7 * 8192 / block);
  // One of a group in a tile reads its own keys; a group in two tiles of 8 is read twice, once from memory.
  std::vector<std::int64_t> groups(64, -1);
  groups[3] = groups[5] = groups[19] = groups[20] = 7;
  groups[31] = groups[32] = 2;
  EXPECT_EQ(keys_of(with_prefixes(call, groups, 8192)).shared_units, 2 * 8192 / block);
  EXPECT_EQ(keys_of(with_prefixes(call, groups, 8192)).again, 8192 / block);
  // Whole units; a sequence that is all shared has a unit of its own.
  EXPECT_EQ(keys_of(with_prefixes(call, groups, block - 1)).shared_units, 0);
  problem::AttentionProblem same = with_prefixes(few(1, 1024), {0, 0}, 5000);
  EXPECT_EQ(keys_of(same).units, 1024 / block + 2);
  // A window leaves no first key.
  HopperCall window = few(1, 8192);
  window.mask = leaf::kv_idx() >= 7000;
  EXPECT_EQ(keys_of(with_prefixes(window, {0, 0}, 4096)).shared_units, 0);
}

TEST(DecodeMmaPrefixes, SaysWhyTheyAreNotUsed) {
  const auto sentence = [](HopperCall call, bool batch_invariant = false) {
    problem::AttentionProblem problem =
        with_prefixes(call, std::vector<std::int64_t>(static_cast<std::size_t>(call.batch), 0), 4096);
    problem.batch_invariant = batch_invariant;
    const plan::Plan plan = offered(problem, call).front().plan;
    EXPECT_FALSE(plan.part<ForwardMmaConfig>().prefixed());
    return plan.access.at(0);
  };
  HopperCall one = few();
  one.batch = 1;
  EXPECT_EQ(sentence(one), "prefix_group is not used: there is one sequence");
  EXPECT_EQ(sentence(few(17)), "prefix_group is not used: sequences have more than 16 queries");
  EXPECT_EQ(sentence(latent()), "prefix_group is not used: values are the first columns of the keys");
  EXPECT_EQ(sentence(few(), true), "prefix_group is not used: batch_invariant is true");
  EXPECT_TRUE(offered(few().problem(), few()).front().plan.access.empty());
}

}  // namespace
}  // namespace heddle::test
