// Partitions and exchange plans: every row has one rank, every key that a rank's queries may read comes to it, and the
// costs of placements are those of the masks.
#include "heddle/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "expect_error.h"
#include "heddle/error.h"
#include "mask/partition_cases.h"
#include "mask/random_mask.h"
#include "sample.h"

namespace heddle::test {
namespace {

/// The keys that a rank's queries need, element by element of the blocks.
std::set<std::int64_t> needed(const Partition& queries, std::int64_t rank, const BlockMask& mask) {
  std::set<std::int64_t> rows;
  const Sequence& sequence = mask.shape().sequences[0];
  for (const std::int64_t q : queries.positions(rank)) {
    for (std::int64_t s = 0; s < std::ssize(mask.shape().sequences); ++s) {
      for (std::int64_t h = 0; h < mask.shape().heads; ++h) {
        for (const Run& run : mask.row(s, h, q / mask.block().q)) {
          const std::int64_t end = std::min(sequence.kv_len, run.end * mask.block().kv);
          for (std::int64_t k = run.begin * mask.block().kv; k < end; ++k) rows.insert(k);
        }
      }
    }
  }
  return rows;
}

void expect_plan_is_the_union(const MadePartition& placed, const BlockMask& mask) {
  const ExchangePlan plan = ExchangePlan::build(placed.queries, placed.keys, mask);
  for (std::int64_t rank = 0; rank < plan.ranks(); ++rank) {
    std::set<std::int64_t> rows = needed(placed.queries, rank, mask);
    for (const std::int64_t own : placed.keys.positions(rank)) rows.erase(own);
    std::vector<std::int64_t> received;
    for (std::int64_t sender = 0; sender < plan.ranks(); ++sender) {
      const std::vector<std::int64_t> of_sender = placed.keys.positions(sender);
      std::vector<std::int64_t> sent;
      std::int64_t before = 0;
      for (std::int64_t other = 0; other < rank; ++other) before += plan.rows(other, sender);
      const std::vector<std::int64_t> local = plan.sent_rows(sender, placed.keys);
      for (std::int64_t i = 0; i < plan.rows(rank, sender); ++i) {
        sent.push_back(of_sender.at(static_cast<std::size_t>(local.at(static_cast<std::size_t>(before + i)))));
      }
      EXPECT_TRUE(std::ranges::is_sorted(sent));
      received.insert(received.end(), sent.begin(), sent.end());
    }
    EXPECT_EQ(received, plan.received_positions(rank));
    std::ranges::sort(received);
    EXPECT_EQ(received, std::vector<std::int64_t>(rows.begin(), rows.end())) << "rank " << rank;
    EXPECT_EQ(plan.rows(rank), std::ssize(rows));
    EXPECT_EQ(plan.rows(rank, rank), 0);
  }
}

TEST(Partition, GivesEachRowToOneRankAndEachRankWhatItsQueriesNeed) {
  const int cases = random_cases(300);
  for (int seed = 0; seed < cases; ++seed) {
    RandomMasks random(static_cast<std::uint64_t>(seed));
    std::mt19937 rng(static_cast<std::uint32_t>(seed));
    const auto below = [&](int end) { return static_cast<std::int64_t>(rng() % static_cast<unsigned>(end)); };
    const std::int64_t q_len = below(200), kv_len = below(2) == 0 ? q_len : below(200);
    const BlockMask mask =
        BlockMask::build(random.draw(), MaskShape::uniform(1 + below(3), 1 + below(3), q_len, kv_len),
                         {1 + below(20), 1 + below(20)}, random.bindings(), 1);
    PartitionOptions options{.chunk = below(30), .seed = static_cast<std::uint64_t>(seed)};
    if (below(2) == 0) options.only = static_cast<Placing>(below(4));
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << q_len << " x " << kv_len);
    const MadePartition placed = made(mask, 1 + below(9), options);
    placed.queries.validate();
    placed.keys.validate();
    EXPECT_EQ(placed.queries == placed.keys, q_len == kv_len);
    std::int64_t least = q_len, most = 0;
    for (std::int64_t rank = 0; rank < placed.queries.ranks(); ++rank) {
      least = std::min(least, placed.queries.rows(rank));
      most = std::max(most, placed.queries.rows(rank));
    }
    EXPECT_LE(most - least, 2 * placed.queries.chunk);  // a chunk more, and the ragged last one
    expect_plan_is_the_union(placed, mask);
    const MadePartition again = made(mask, placed.queries.ranks(), options);
    EXPECT_EQ(again.queries, placed.queries);
    EXPECT_EQ(again.queries.hash(), placed.queries.hash());
    ASSERT_FALSE(HasFailure());
  }
}

// ---- hosts

/// Follows each row through both steps of a plan over hosts, number by number.
void expect_rows_arrive(const MadePartition& placed, const BlockMask& mask, std::int64_t per_host) {
  const ExchangePlan plan = ExchangePlan::build(placed.queries, placed.keys, mask, per_host);
  const std::int64_t ranks = plan.ranks();
  ASSERT_EQ(plan.ranks_per_host, per_host);
  std::vector<std::vector<std::int64_t>> memory;  // of each rank: its own rows, then what crosses to it
  for (std::int64_t rank = 0; rank < ranks; ++rank) memory.push_back(placed.keys.positions(rank));
  std::vector<std::vector<std::int64_t>> crossed(static_cast<std::size_t>(ranks));
  for (std::int64_t sender = 0; sender < ranks; ++sender) {
    const std::vector<std::int64_t> numbers = plan.crossing_sent_rows(sender, placed.keys);
    auto next = numbers.begin();
    for (std::int64_t receiver = 0; receiver < ranks; ++receiver) {
      const std::int64_t rows = plan.crossing_rows(receiver, sender);
      if (rows != 0) {
        EXPECT_EQ(receiver % per_host, sender % per_host);
        EXPECT_NE(receiver / per_host, sender / per_host);
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        crossed[static_cast<std::size_t>(receiver)].push_back(
            placed.keys.positions(sender).at(static_cast<std::size_t>(*next++)));
      }
    }
    EXPECT_TRUE(next == numbers.end());
  }
  for (std::int64_t first = 0; first < ranks; first += per_host) {
    std::vector<std::int64_t> of_host;
    std::set<std::int64_t> read, own;
    for (std::int64_t rank = first; rank < first + per_host; ++rank) {
      const auto& rows = crossed[static_cast<std::size_t>(rank)];
      of_host.insert(of_host.end(), rows.begin(), rows.end());
      read.merge(needed(placed.queries, rank, mask));
      for (const std::int64_t row : placed.keys.positions(rank)) own.insert(row);
      auto& all = memory[static_cast<std::size_t>(rank)];
      all.insert(all.end(), rows.begin(), rows.end());
    }
    for (const std::int64_t row : own) read.erase(row);
    std::ranges::sort(of_host);
    EXPECT_EQ(of_host, std::vector<std::int64_t>(read.begin(), read.end())) << "each row crosses once";
  }
  for (std::int64_t receiver = 0; receiver < ranks; ++receiver) {
    std::vector<std::int64_t> received;
    for (std::int64_t sender = 0; sender < ranks; ++sender) {
      const std::vector<std::int64_t> numbers = plan.sent_rows(sender, placed.keys);
      std::int64_t before = 0;
      for (std::int64_t other = 0; other < receiver; ++other) before += plan.rows(other, sender);
      for (std::int64_t i = 0; i < plan.rows(receiver, sender); ++i) {
        const auto number = static_cast<std::size_t>(numbers.at(static_cast<std::size_t>(before + i)));
        received.push_back(memory[static_cast<std::size_t>(sender)].at(number));
      }
      EXPECT_TRUE(plan.rows(receiver, sender) == 0 || receiver / per_host == sender / per_host);
    }
    EXPECT_EQ(received, plan.received_positions(receiver));
    std::set<std::int64_t> rows = needed(placed.queries, receiver, mask);
    for (const std::int64_t own : placed.keys.positions(receiver)) rows.erase(own);
    std::ranges::sort(received);
    EXPECT_EQ(received, std::vector<std::int64_t>(rows.begin(), rows.end())) << "rank " << receiver;
  }
}

TEST(Partition, SendsARowOnceToAHost) {
  const int cases = random_cases(150);
  for (int seed = 0; seed < cases; ++seed) {
    RandomMasks random(static_cast<std::uint64_t>(seed));
    std::mt19937 rng(static_cast<std::uint32_t>(seed));
    const auto below = [&](int end) { return static_cast<std::int64_t>(rng() % static_cast<unsigned>(end)); };
    const std::int64_t q_len = 1 + below(200), kv_len = below(2) == 0 ? q_len : 1 + below(200);
    const std::int64_t hosts = 2 + below(3), per_host = 2 + below(3);
    const BlockMask mask =
        BlockMask::build(random.draw(), MaskShape::uniform(1 + below(2), 1 + below(3), q_len, kv_len),
                         {1 + below(20), 1 + below(20)}, random.bindings(), 1);
    PartitionOptions options{.chunk = below(30), .seed = static_cast<std::uint64_t>(seed), .ranks_per_host = per_host};
    if (below(2) == 0) options.only = static_cast<Placing>(below(4));
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << q_len << " x " << kv_len << ", " << hosts << " x "
                                    << per_host);
    const MadePartition placed = made(mask, hosts * per_host, options);
    placed.queries.validate();
    placed.keys.validate();
    std::int64_t least = q_len, most = 0;
    for (std::int64_t rank = 0; rank < placed.queries.ranks(); ++rank) {
      least = std::min(least, placed.queries.rows(rank));
      most = std::max(most, placed.queries.rows(rank));
    }
    EXPECT_LE(most - least, 2 * placed.queries.chunk);
    expect_rows_arrive(placed, mask, per_host);
    const MadePartition again = made(mask, hosts * per_host, options);
    EXPECT_EQ(again.queries, placed.queries);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(Partition, MostElementsAreThoseOfTheBusiestRank) {
  const BlockMask causal = built("kv_idx <= q_idx", 64, 64, 4);
  const Partition contiguous = Partition::contiguous(64, 2, 8);
  // 16 rows of blocks, of which the last 8 list 9 to 16 blocks of 4 x 4.
  EXPECT_EQ(most_elements(contiguous, causal), (9 + 10 + 11 + 12 + 13 + 14 + 15 + 16) * 16);
  EXPECT_THROW(most_elements(Partition::contiguous(60, 2, 8), causal), Error);
}

// Four ranks on two hosts, 16 rows each, all of which all read.
TEST(ExchangePlan, PredictsTheTimeOfEachWay) {
  const BlockMask mask = built("", 64, 64, 4);
  const MadePartition placed = made(mask, 4, {.chunk = 16, .only = Placing::contiguous, .ranks_per_host = 2});
  const ExchangePlan two = ExchangePlan::build(placed.queries, placed.keys, mask, 2),
                     direct = ExchangePlan::build(placed.queries, placed.keys, mask);
  constexpr std::int64_t kMegabyte = 1'000'000;
  constexpr double kStep = 55e-6;
  // Directly 32 rows cross to a rank; in two steps 16, and then 16 + 2 * 16 - 16 come from the neighbour.
  EXPECT_DOUBLE_EQ(direct.predicted_seconds(kMegabyte, 2), kStep + 32e6 / 50e9);
  EXPECT_DOUBLE_EQ(two.predicted_seconds(kMegabyte), 2 * kStep + 16e6 / 50e9 + 32e6 / 258e9);
  EXPECT_DOUBLE_EQ(direct.predicted_seconds(kMegabyte), kStep + 48e6 / 258e9) << "all on one host";
  EXPECT_TRUE(takes_two_steps(HostSteps::automatic, direct, two, kMegabyte));
  EXPECT_FALSE(takes_two_steps(HostSteps::automatic, direct, two, 1000));
  EXPECT_TRUE(takes_two_steps(HostSteps::two, direct, two, 1000));
  EXPECT_FALSE(takes_two_steps(HostSteps::one, direct, two, kMegabyte));
  EXPECT_FALSE(takes_two_steps(HostSteps::two, direct, direct, kMegabyte)) << "there is one host";
  // Bytes that leave a rank count as those that come: rank 0 has the keys that all read.
  const BlockMask first = built("kv_idx < 16", 64, 64, 16);
  EXPECT_DOUBLE_EQ(ExchangePlan::build(placed.queries, placed.keys, first).predicted_seconds(kMegabyte, 2),
                   kStep + 32e6 / 50e9);
}

TEST(Partition, LoadsCountWhatCrossesOnceForAHost) {
  const BlockMask mask = built("", 64, 64, 4);
  const PartitionOptions options{
      .chunk = 8, .exchange_weight = 3, .only = Placing::contiguous, .ranks_per_host = 2, .host_exchange_weight = 100};
  const MadePartition placed = made(mask, 4, options);
  EXPECT_EQ(placed.ranks_per_host, 2);
  const ExchangePlan plan = ExchangePlan::build(placed.queries, placed.keys, mask, 2);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(placed.loads[rank].received, 48);
    EXPECT_EQ(placed.loads[rank].crossing, 16) << "the rows of the rank of its number on the other host";
    EXPECT_EQ(placed.loads[rank].exchange, 48 * 3 + 16 * 100);
    EXPECT_EQ(plan.crossing_rows(static_cast<std::int64_t>(rank)), 16);
  }
  EXPECT_EQ(plan.crossing_rows_if_direct(), 4 * 32);
  EXPECT_EQ(placed.candidates[0].mean_crossing, 0.5);
  EXPECT_NE(placed.text().find("receives 48 rows, takes 16 from other hosts"), std::string::npos) << placed.text();
  EXPECT_NE(placed.text().find("over hosts taken: contiguous"), std::string::npos) << placed.text();
  EXPECT_NE(placed.text().find("within hosts taken: contiguous"), std::string::npos) << placed.text();
  EXPECT_NE(plan.text().find("rows across hosts: 64 (128 if each rank took its own), within hosts: 128\n"),
            std::string::npos)
      << plan.text();
  EXPECT_NE(plan.text(10).find("bytes across hosts: 640 (1280 if each rank took its own), within hosts: 1280\n"),
            std::string::npos)
      << plan.text(10);
  expect_error([&] { plan.text(std::int64_t{1} << 62); }, ErrorCode::invalid_argument,
               testing::HasSubstr("row_bytes is 4611686018427387904; up to "));
  // Rank 2 reads rows of rank 1, which cross to the rank of rank 1's number.
  const BlockMask window = built("kv_idx <= q_idx and q_idx - kv_idx < 8", 64, 64, 8);
  const MadePartition neighbours = made(window, 4, options);
  EXPECT_EQ(neighbours.loads[2].received, 8);
  EXPECT_EQ(neighbours.loads[2].crossing, 0);
  EXPECT_EQ(neighbours.loads[3].crossing, 8);
  // One rank on each host: each row crosses once to each of them, directly.
  PartitionOptions alone = options;
  alone.ranks_per_host = 1;
  EXPECT_EQ(made(mask, 4, alone).loads[0].exchange, 48 * 100);
  EXPECT_EQ(made(mask, 4, alone).ranks_per_host, 0);
  EXPECT_TRUE(ExchangePlan::build(placed.queries, placed.keys, mask, 1).crossing.empty());
  EXPECT_NE(plan.hash(), ExchangePlan::build(placed.queries, placed.keys, mask).hash());
}

TEST(Partition, PlacesDocumentsOnHostsFirst) {
  constexpr std::int64_t kTokens = 131072;
  double crossing = 0, flat = 0, balance = 0;
  constexpr int kDraws = 4;
  for (std::uint32_t seed = 0; seed < kDraws; ++seed) {
    std::vector<std::int32_t> ids = documents(kTokens, 8192, 65536, seed);
    Bindings bindings;
    bindings.captures["doc"] = ConstTensorView(ids.data(), DType::i32, Dims{kTokens});
    const BlockMask mask = built("kv_idx <= q_idx and doc[q_idx] == doc[kv_idx]", kTokens, kTokens, 128, bindings);
    const MadePartition by_hosts = made(mask, 8, {.ranks_per_host = 4}), without = made(mask, 8);
    const auto crossed = [&](const MadePartition& placed) {
      const ExchangePlan plan = ExchangePlan::build(placed.queries, placed.keys, mask, 4);
      std::int64_t rows = 0;
      for (std::int64_t rank = 0; rank < 8; ++rank) rows += plan.crossing_rows(rank);
      return static_cast<double>(rows) / kTokens;
    };
    crossing += crossed(by_hosts) / kDraws;
    flat += crossed(without) / kDraws;
    balance += by_hosts.candidates[0].balance / kDraws;
  }
  EXPECT_LT(crossing, 0.6 * flat) << flat << ", balance " << balance;
  EXPECT_GT(balance, 0.9);
}

TEST(Partition, CountsElementsByTheKindOfTheirBlocks) {
  const BlockMask mask = built("kv_idx <= q_idx", 10, 10, 4, {}, 3, 2);
  const std::vector<ChunkCost> costs = chunk_costs(mask, 4);
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_EQ(costs[1].full, 6 * 16);
  EXPECT_EQ(costs[1].partial, 6 * 16);
  EXPECT_EQ(costs[2].full, 6 * 2 * 8);
  EXPECT_EQ(costs[2].partial, 6 * 2 * 2);
  EXPECT_EQ(costs[2].rows, 2);
}

TEST(Partition, LoadsFollowTheWeightsOfMasksAndFactors) {
  const BlockMask causal = built("kv_idx <= q_idx", 64, 64, 4),
                  window = built("kv_idx <= q_idx and q_idx - kv_idx < 8", 64, 64, 4);
  const WeightedMask both[] = {{&causal, 1}, {&window, 3}};
  const PartitionOptions options{.chunk = 8, .partial_factor = 2, .row_weight = 5, .only = Placing::contiguous};
  const MadePartition placed = make_partition(both, 4, options);
  const MadePartition alone[] = {made(causal, 4, options), made(window, 4, options)};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(placed.loads[rank].attention, alone[0].loads[rank].attention + 3 * alone[1].loads[rank].attention);
    EXPECT_EQ(placed.loads[rank].received, alone[0].loads[rank].received + 3 * alone[1].loads[rank].received);
  }
  EXPECT_EQ(alone[0].loads[0].attention, 6 * 16 + 2 * 4 * 16 + 5 * 16);
  EXPECT_EQ(alone[1].loads[1].received, 8);
}

TEST(Partition, RefusesWhatNoPlacementHas) {
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "accepted";
  };
  const BlockMask mask = built("kv_idx <= q_idx", 64, 64), longer = built("kv_idx <= q_idx", 65, 65);
  EXPECT_EQ(refusal([] { make_partition({}, 2); }), "masks is empty; at least one is accepted");
  EXPECT_EQ(refusal([&] { made(mask, 0); }), "ranks is 0; 1 to 65536 are accepted");
  EXPECT_EQ(refusal([&] { made(mask, 2, {.chunk = -1}); }), "chunk is -1; 0 and more are accepted");
  EXPECT_EQ(refusal([&] { made(mask, 6, {.ranks_per_host = 4}); }),
            "ranks_per_host is 4, and there are 6 ranks; 0 and their divisors are accepted");
  EXPECT_EQ(refusal([&] { made(mask, 6, {.ranks_per_host = -2}); }),
            "ranks_per_host is -2, and there are 6 ranks; 0 and their divisors are accepted");
  EXPECT_EQ(refusal([&] { made(mask, 2, {.exposed = std::nan("")}); }),
            "exposed is nan; finite numbers from 0 on are accepted");
  EXPECT_NE(refusal([&] { made(mask.transposed(), 2); }).find("is transposed"), std::string::npos);
  const WeightedMask both[] = {{&mask, 1}, {&longer, 1}};
  EXPECT_NE(refusal([&] { make_partition(both, 2); }).find("masks[1] covers 65 queries and 65 keys"),
            std::string::npos);
  const MadePartition placed = made(mask, 2);
  EXPECT_NE(refusal([&] { ExchangePlan::build(placed.queries, placed.keys, longer); }).find("the mask covers 65"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { placed.queries.positions(2); }), "rank is 2; 0 to 1 are accepted");
  EXPECT_NE(refusal([] { Partition::contiguous(std::int64_t{1} << 30, 2, 1); }).find("chunks; up to 1048576"),
            std::string::npos);
  Partition twice = placed.queries;
  twice.placement[1] = twice.placement[0];
  EXPECT_NE(refusal([&] { twice.validate(); }).find("stands in two ranges or in none"), std::string::npos);
  Partition gap = placed.queries;
  gap.placement[1].clear();
  EXPECT_NE(refusal([&] { gap.validate(); }), "accepted");
}

TEST(Partition, TextsSayWhoHoldsWhat) {
  const BlockMask mask = built("kv_idx <= q_idx", 64, 64, 4);
  const MadePartition placed = made(mask, 2, {.chunk = 8, .only = Placing::zigzag});
  EXPECT_EQ(placed.queries.text(), "00111100");
  EXPECT_NE(placed.text().find("rank 0: 32 queries in 2 ranges, load 1.00 of the mean, receives 32 rows"),
            std::string::npos)
      << placed.text();
  EXPECT_NE(placed.text().find("taken: zigzag: balance 1.00"), std::string::npos) << placed.text();
  EXPECT_EQ(
      ExchangePlan::build(placed.queries, placed.keys, mask).text(),
      "receives from         0         1\nrank        0         0        32\nrank        1        16         0\n");
}

// ---- the balance that docs/notes/context_parallel.md lists: 128k tokens, chunks of 1024

}  // namespace
}  // namespace heddle::test
