// Which ranks a placement gives chunks to, how even it makes their loads, and how long it takes.
#include "mask/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "mask/partition_cases.h"

namespace heddle::test {
namespace {

TEST(Placement, KeepsDocumentsTogether) {
  const BlockMask mask = built("kv_idx <= q_idx and q_idx // 32 == kv_idx // 32", 128, 128, 4);
  const MadePartition placed = made(mask, 3, {.chunk = 8, .only = Placing::documents});
  EXPECT_EQ(placed.queries.text(), "0000111122220012") << "three whole documents, and one in the room that is left";
}

/// A placement problem of documents with cuts inside of chunks, and a ragged last chunk.
mask::PlacementProblem problem_of_documents(std::uint32_t seed, bool keys_move) {
  const std::int64_t length = 1000, keys = keys_move ? length : 1500;
  std::vector<std::int32_t> ids = documents(keys, 100, 500, seed);
  Bindings bindings;
  bindings.captures["doc"] = ConstTensorView(ids.data(), DType::i32, Dims{keys});
  const BlockMask mask = built("kv_idx <= q_idx and doc[q_idx] == doc[kv_idx]", length, keys, 8, bindings);
  mask::PlacementProblem problem;
  problem.ranks = 3;
  problem.chunk = 16;
  problem.q_len = length;
  problem.kv_len = keys;
  problem.exposed = 0.25;
  problem.keys_move = keys_move;
  for (const ChunkCost& cost : chunk_costs(mask, 16)) problem.times.push_back(cost.full + cost.partial);
  for (std::int64_t k = 0; !keys_move && k * 16 < keys; ++k)
    problem.key_owners.push_back(static_cast<std::int32_t>(k % 3));
  problem.masks.push_back({mask::ChunkNeeds(mask, 16), 1, 100});
  problem.masks.push_back({mask::ChunkNeeds(built("kv_idx <= q_idx", length, keys, 8), 16), 2, 30});
  return problem;
}

TEST(Placement, SwapsKnowWhatTheirPlacementCosts) {
  int lowered = 0;
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    const mask::PlacementProblem problem = problem_of_documents(seed, seed % 2 == 0);
    mask::Placeable all{.chunks = {}, .rooms = mask::rooms_of(problem)};
    for (std::int64_t c = 0; c < problem.chunks(); ++c) all.chunks.push_back(c);
    mask::Owners start(all.chunks.size());
    mask::place(problem, all, Placing::contiguous, start);
    const mask::Swapped made = mask::swapped(problem, start, seed);
    const double cost = mask::cost_of(problem, mask::loads_of(problem, made.owners));
    EXPECT_NEAR(made.cost, cost, 1e-9 * cost);
    lowered += cost < 0.99 * mask::cost_of(problem, mask::loads_of(problem, start)) ? 1 : 0;
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(std::ranges::count(made.owners, rank), std::ranges::count(start, rank));
  }
  EXPECT_GE(lowered, 4);
}

TEST(Placement, ChunksShrinkUntilRanksHaveSome) {
  EXPECT_EQ(default_chunk(1 << 20, 8), 1024);
  EXPECT_EQ(default_chunk(4 * 8 * 1024, 8), 1024);
  EXPECT_EQ(default_chunk(4 * 8 * 1024 - 1, 8), 512);
  EXPECT_EQ(default_chunk(1024, 8), 128);
  EXPECT_EQ(default_chunk(1000, std::int64_t{1} << 62), 1);
  EXPECT_EQ(default_chunk(100, 4), 16);
  EXPECT_EQ(default_chunk(3, 4), 1);
  EXPECT_EQ(default_chunk(0, 4), 1);
}

struct Balance {
  double balance = 0, received = 0;
};

Balance mean_balance(std::int64_t ranks, double median, std::int64_t longest, std::optional<Placing> only) {
  constexpr int kDraws = 6;
  constexpr std::int64_t kTokens = 131072;
  Balance sum;
  for (std::uint32_t seed = 0; seed < kDraws; ++seed) {
    std::vector<std::int32_t> ids = documents(kTokens, median, longest, seed);
    Bindings bindings;
    bindings.captures["doc"] = ConstTensorView(ids.data(), DType::i32, Dims{kTokens});
    const BlockMask mask = built("kv_idx <= q_idx and doc[q_idx] == doc[kv_idx]", kTokens, kTokens, 128, bindings);
    const PartitionCandidate taken = made(mask, ranks, {.only = only}).candidates[0];
    sum.balance += taken.balance / kDraws;
    sum.received += taken.mean_received / kDraws;
  }
  return sum;
}

TEST(Placement, SwapsBalanceDocumentsForAFractionOfTheRows) {
  for (const auto& [median, longest] : {std::pair(3072.0, 32768), std::pair(8192.0, 65536)}) {
    for (const std::int64_t ranks : {4, 8}) {
      const Balance apart = mean_balance(ranks, median, longest, Placing::contiguous);
      const Balance pairs = mean_balance(ranks, median, longest, Placing::zigzag);
      const Balance equal = mean_balance(ranks, median, longest, Placing::heap);
      const Balance taken = mean_balance(ranks, median, longest, {});
      SCOPED_TRACE(testing::Message() << "documents of " << median << ", " << ranks << " ranks: taken " << taken.balance
                                      << ", rows " << taken.received);
      EXPECT_GT(taken.balance, 0.95);
      EXPECT_LT(taken.received, 0.6 * equal.received);
      EXPECT_GT(equal.balance, 0.99);
      EXPECT_LT(apart.balance, 0.7);
      EXPECT_LT(pairs.balance, 0.75);
    }
  }
}

TEST(Placement, TakesZigzagForCausalAndContiguousForWindows) {
  const BlockMask causal = built("kv_idx <= q_idx", 131072, 131072);
  const MadePartition pairs = made(causal, 8);
  EXPECT_EQ(pairs.candidates[0].placing, Placing::zigzag) << pairs.text();
  EXPECT_FALSE(pairs.candidates[0].swapped);
  EXPECT_GT(pairs.candidates[0].balance, 0.999);
  EXPECT_NEAR(pairs.candidates[0].mean_received, 0.66, 0.01);
  EXPECT_NEAR(pairs.candidates[0].most_received, 0.875, 0.001);
  const BlockMask window = built("kv_idx <= q_idx and q_idx - kv_idx < 4096", 262144, 262144);
  const MadePartition apart = made(window, 8);
  EXPECT_EQ(apart.candidates[0].placing, Placing::contiguous) << apart.text();
  EXPECT_FALSE(apart.candidates[0].swapped);
  EXPECT_GT(apart.candidates[0].balance, 0.98);
  const ExchangePlan plan = ExchangePlan::build(apart.queries, apart.keys, window);
  for (std::int64_t rank = 0; rank < 8; ++rank) EXPECT_LE(plan.rows(rank), 4096);
}

/// 20 milliseconds are the goal on a core of its own; the time is recorded, and decides nothing.
TEST(Placement, PlacesAMillionTokens) {
  constexpr std::int64_t kTokens = 1 << 20;
  const BlockMask causal = built("kv_idx <= q_idx", kTokens, kTokens);
  for (const std::int64_t per_host : {0, 4}) {
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto begin = std::chrono::steady_clock::now();
      const MadePartition placed = made(causal, 8, {.ranks_per_host = per_host});
      const ExchangePlan plan = ExchangePlan::build(placed.queries, placed.keys, causal, per_host);
      best =
          std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
      EXPECT_EQ(plan.rows(0), kTokens / 16 * 14);  // it holds the last sixteenth, which reads all
    }
    RecordProperty(per_host == 0 ? "milliseconds" : "milliseconds_by_hosts", std::to_string(best));
  }
}

}  // namespace
}  // namespace heddle::test
