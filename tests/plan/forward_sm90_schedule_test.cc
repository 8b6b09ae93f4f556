// The lists that a launch of the Hopper family walks: every tile once, its runs those of the block mask, in an order
// that leaves the CTAs even.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "heddle/mods.h"
#include "mask/random_mask.h"
#include "plan/families/forward_sm90.h"
#include "plan/families/forward_sm90_costs.h"
#include "plan/hopper.h"

namespace heddle::test {
namespace {

using plan::TileSchedule;
using shared::ForwardSm90Config;
using TileKey = std::tuple<int, int, int>;  // batch, head, q_tile
using BoxKey = std::tuple<int, int, int>;   // batch, head, queries / 64: a warpgroup's share of a tile

ForwardSm90Config config_of(int dim, int warpgroups, int kv_block, bool masked = false) {
  return {.qk_dim = dim,
          .v_dim = dim,
          .warpgroups = warpgroups,
          .kv_block = kv_block,
          .stages = 2,
          .q_buffers = 1,
          .o_panels = 1,
          .f16 = false,
          .lse = true,
          .masked = masked};
}

std::int64_t blocks(std::int64_t length, std::int64_t block) { return (length + block - 1) / block; }

/// The key blocks of 64 queries, a character each: '.' not seen, '#' full, '+' partial.
std::string expected_classes(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                             const BlockMask* mask, const BoxKey& at) {
  const auto& [batch, head, box] = at;
  std::string classes(static_cast<std::size_t>(blocks(problem.kv_rows, config.kv_block)), mask == nullptr ? '#' : '.');
  if (mask != nullptr) {
    for (const Run& run : mask->row(batch, head, box * std::int64_t{64} / mask->block().q)) {
      for (std::size_t c = 0; c < classes.size(); ++c) {
        const auto mask_block = static_cast<std::int64_t>(c) * config.kv_block / mask->block().kv;
        if (mask_block >= run.begin && mask_block < run.end) classes[c] = run.kind == RunKind::full ? '#' : '+';
      }
    }
  }
  return classes;
}

/// A tile's flags, a word for each step.
std::vector<int> item_flags(const TileSchedule& schedule, const shared::WorkItem& item) {
  std::vector<int> flags;
  const shared::KvRun* left = nullptr;
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs.at(static_cast<std::size_t>(r));
    EXPECT_LT(run.begin, run.end);
    EXPECT_GE(run.begin, left == nullptr ? 0 : left->end) << "runs out of order";
    EXPECT_FALSE(left != nullptr && left->end == run.begin && (left->flags & 63) == (run.flags & 63))
        << "runs not merged";
    for (int c = run.begin; c < run.end; ++c) flags.push_back(c + 1 < run.end ? run.flags : run.last_flags);
    left = &run;
  }
  EXPECT_EQ(item.steps, std::ssize(flags));
  const shared::KvRun& first = schedule.runs.at(static_cast<std::size_t>(item.first_run));
  EXPECT_EQ(std::tie(item.run.begin, item.run.end, item.run.flags, item.run.last_flags),
            std::tie(first.begin, first.end, first.flags, first.last_flags));
  return flags;
}

bool attends(int flags, int warpgroup) { return (flags & shared::kStepAttends << warpgroup) != 0; }

/// As expected_classes(), of one warpgroup of a tile.
std::string item_classes(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                         const TileSchedule& schedule, const shared::WorkItem& item, int warpgroup) {
  std::string classes(static_cast<std::size_t>(blocks(problem.kv_rows, config.kv_block)), '.');
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs.at(static_cast<std::size_t>(r));
    const bool partial = (run.flags & shared::kStepPartial << warpgroup) != 0;
    EXPECT_FALSE(partial && !attends(run.flags, warpgroup));
    if (!attends(run.flags, warpgroup)) continue;
    for (int c = run.begin; c < run.end; ++c) classes.at(static_cast<std::size_t>(c)) = partial ? '+' : '#';
  }
  if (config.descending) std::ranges::reverse(classes);
  return classes;
}

/// The queries of every tile and every fill, 64 at a time, see what the mask says; those past the end see nothing.
void expect_every_query_once(const problem::AttentionProblem& problem, const ForwardSm90Config& config,
                             const BlockMask* mask, const TileSchedule& schedule) {
  const std::int64_t boxes = blocks(problem.q_rows, 64);
  std::map<BoxKey, std::string> found;
  const std::string nothing(static_cast<std::size_t>(blocks(problem.kv_rows, config.kv_block)), '.');
  for (const shared::WorkItem& item : schedule.items) {
    EXPECT_GE(item.steps, 1);
    for (int w = 0; w < config.warpgroups; ++w) {
      const BoxKey box{item.batch, item.head, item.q_tile * config.warpgroups + w};
      const std::string classes = item_classes(problem, config, schedule, item, w);
      if (std::get<2>(box) >= boxes) {
        EXPECT_EQ(classes, nothing) << "queries past the end attend";
      } else if (classes != nothing) {
        EXPECT_TRUE(found.emplace(box, classes).second) << "queries twice";
      }
    }
  }
  ASSERT_EQ(schedule.fills.size() % 3, 0U);
  for (std::size_t i = 0; i < schedule.fills.size(); i += 3) {
    const BoxKey box{schedule.fills[i + 2], schedule.fills[i + 1], schedule.fills[i]};
    EXPECT_TRUE(found.emplace(box, nothing).second) << "queries twice";
  }
  std::map<BoxKey, std::string> expected;
  for (int b = 0; b < problem.batch; ++b) {
    for (int h = 0; h < problem.q_heads; ++h) {
      for (int box = 0; box < boxes; ++box) {
        expected[{b, h, box}] = expected_classes(problem, config, mask, {b, h, box});
      }
    }
  }
  EXPECT_EQ(found, expected);
}

/// Each step of a tile says whether all warpgroups attend the next one, and an item says it of its first: consumers
/// look no further.
void expect_steps_foretell(const ForwardSm90Config& config, const TileSchedule& schedule) {
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const shared::WorkItem& item = schedule.items[i];
    int before = item.before;
    for (const int flags : item_flags(schedule, item)) {
      bool all = true;
      for (int w = 0; w < config.warpgroups; ++w) all = all && attends(flags, w);
      EXPECT_EQ((before & shared::kStepNextUneven) != 0, !all) << "item " << i;
      before = flags;
    }
    EXPECT_EQ(before & shared::kStepNextUneven, 0) << "item " << i << ": another tile's first step is not known";
  }
}

double clocks_of(const TileSchedule& schedule, const ForwardSm90Config& config, const shared::WorkItem& item) {
  const plan::ForwardSm90Clocks clocks = plan::forward_sm90_clocks(config);
  double sum = clocks.tile;
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const shared::KvRun& run = schedule.runs[static_cast<std::size_t>(r)];
    for (int w = 0; w < config.warpgroups; ++w) {
      const double share = static_cast<double>(run.end - run.begin) / config.warpgroups;
      if (attends(run.flags, w)) sum += share * clocks.full_step;
      if (run.flags & shared::kStepPartial << w) sum += share * (clocks.partial_step - clocks.full_step);
    }
  }
  return sum;
}

/// Drawing leaves no CTA with more than the mean and one tile.
void expect_balanced(const ForwardSm90Config& config, const TileSchedule& schedule, const device::CudaCaps& caps) {
  const std::size_t work = std::max(schedule.items.size(), schedule.fills.size() / 3);
  ASSERT_EQ(schedule.grid, std::min<int>(caps.multiprocessors, static_cast<int>(work)));
  ASSERT_EQ(schedule.ctas.size(), schedule.items.size());
  std::vector<double> loads(static_cast<std::size_t>(schedule.grid), 0);
  double total = 0, largest = 0;
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const double clocks = clocks_of(schedule, config, schedule.items[i]);
    loads.at(schedule.ctas[i]) += clocks;
    total += clocks;
    largest = std::max(largest, clocks);
  }
  const double longest = *std::ranges::max_element(loads);
  EXPECT_NEAR(schedule.longest, longest, 1e-3 * longest);
  EXPECT_LE(longest, (total / schedule.grid + largest) * 1.001);
}

void expect_valid(const problem::AttentionProblem& problem, const ForwardSm90Config& config, const BlockMask* mask,
                  const device::CudaCaps& caps) {
  const TileSchedule schedule = plan::forward_sm90_schedule(problem, config, mask, caps);
  expect_every_query_once(problem, config, mask, schedule);
  expect_steps_foretell(config, schedule);
  if (problem.batch * problem.q_heads * problem.q_rows > 0) expect_balanced(config, schedule, caps);
}

TEST(ForwardSm90Schedule, CountsTheLastBlocksKeysWhereTilesDescend) {
  const HopperCall call{.q_rows = 64, .kv_rows = 300};
  ForwardSm90Config config = config_of(128, 1, 128);
  const TileSchedule up = plan::forward_sm90_schedule(call.problem(), config, nullptr, h200());
  config.descending = true;
  const TileSchedule down = plan::forward_sm90_schedule(call.problem(), config, nullptr, h200());
  EXPECT_EQ(up.elements, 64 * 300);
  EXPECT_EQ(down.elements, 64 * 300);
  EXPECT_EQ(down.items[0].steps, 3);
}

TEST(ForwardSm90Schedule, WalksTheBlocksOfRandomMasks) {
  constexpr std::array<std::int64_t, 8> lengths{1, 16, 63, 64, 65, 192, 300, 449};
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomMasks random(seed);
    const auto below = [&](int bound) { return random.below(bound); };
    const auto length = [&] { return lengths[static_cast<std::size_t>(below(lengths.size()))]; };
    const std::int64_t kv_heads = 1 + below(2);
    HopperCall call = {.batch = 1 + below(3),
                       .q_heads = kv_heads * (1 + below(2)),
                       .kv_heads = kv_heads,
                       .q_rows = length(),
                       .kv_rows = length(),
                       .shared_kv = below(3) == 0};
    call.mask = random.draw();
    call.options.bindings = random.bindings();
    ForwardSm90Config config = config_of(128, 1 + below(3), 16 * (1 + below(8)), true);
    config.descending = below(2) == 0;
    const BlockMask mask = *call.rows_of({64 * (1 + below(4)), config.kv_block * (1 + below(3))});
    device::CudaCaps caps = h200();
    caps.multiprocessors = 1 + below(20);
    expect_valid(call.problem(), config, &mask, caps);
  }
}

TEST(ForwardSm90Schedule, IsOneRunWithoutAMask) {
  for (const std::int64_t kv_rows : {1, 79, 80, 81, 160, 200, 513}) {
    SCOPED_TRACE(kv_rows);
    const HopperCall call = {.batch = 3, .q_heads = 4, .kv_heads = 2, .q_rows = 960, .kv_rows = kv_rows};
    expect_valid(call.problem(), config_of(128, 3, 80), nullptr, h200());
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config_of(128, 3, 80), nullptr, h200());
    EXPECT_EQ(schedule.runs.size(), 1U);
  }
}

TEST(ForwardSm90Schedule, LeavesWarpgroupsPastTheEndOut) {
  const HopperCall call = {.batch = 2, .q_heads = 2, .kv_heads = 2, .q_rows = 200, .kv_rows = 300};
  const ForwardSm90Config config = config_of(128, 3, 80);
  expect_valid(call.problem(), config, nullptr, h200());
  device::CudaCaps caps = h200();
  caps.multiprocessors = 1;
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, nullptr, caps);
  // The second tile of each head has 8 queries: the first warpgroup's.
  ASSERT_EQ(schedule.runs.size(), 2U);
  EXPECT_EQ(schedule.runs[0].flags, 7);
  EXPECT_EQ(schedule.runs[1].flags, 1 | shared::kStepNextUneven);
  EXPECT_EQ(schedule.runs[1].last_flags, 1);
  ASSERT_EQ(schedule.items.size(), 8U);
  for (const shared::WorkItem& item : schedule.items) {
    EXPECT_EQ(item.before, item.q_tile == 1 ? shared::kStepNextUneven : 0);
  }
}

TEST(ForwardSm90Schedule, FillsQueriesOfATileWhoseOthersAttend) {
  // Of a tile's queries only those from 64 on attend, and these all keys.
  HopperCall call = {.q_rows = 192, .kv_rows = 160, .mask = leaf::q_idx() >= 64};
  const ForwardSm90Config config = config_of(128, 3, 80, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, 80});
  expect_valid(call.problem(), config, mask.get(), h200());
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
  EXPECT_EQ(schedule.fills, (std::vector<int>{0, 0, 0}));
  ASSERT_EQ(schedule.items.size(), 1U);
  ASSERT_EQ(schedule.runs.size(), 1U);
  EXPECT_EQ(schedule.runs[0].flags & 63, 6);
}

TEST(ForwardSm90Schedule, FillsWhereNoKeyIs) {
  const HopperCall call = {
      .batch = 2, .q_heads = 3, .kv_heads = 3, .q_rows = 300, .kv_rows = 0, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  for (const bool masked : {true, false}) {
    const std::shared_ptr<const BlockMask> mask = masked ? call.rows_of({128, 128}) : nullptr;
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
    EXPECT_TRUE(schedule.items.empty());
    EXPECT_EQ(schedule.fills.size(), 3U * 2 * 3 * 5);  // 300 queries, 64 at a time
    EXPECT_EQ(schedule.grid, 2 * 3 * 5);
    EXPECT_EQ(schedule.longest, 0);
  }
}

TEST(ForwardSm90Schedule, IsEmptyWhereThereIsNothingToCompute) {
  for (HopperCall call : {HopperCall{.batch = 0}, HopperCall{.q_heads = 0}, HopperCall{.q_rows = 0}}) {
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config_of(128, 2, 128), nullptr, h200());
    EXPECT_EQ(schedule.grid, 0);
    EXPECT_TRUE(schedule.items.empty());
    EXPECT_TRUE(schedule.fills.empty());
  }
}

/// The order in which tiles are drawn: "batch.head.tile".
std::string drawn(const HopperCall& call, const ForwardSm90Config& config, std::int64_t l2_bytes) {
  device::CudaCaps caps = h200();
  caps.l2_bytes = l2_bytes;
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, config.kv_block});
  std::string order;
  for (const shared::WorkItem& item : plan::forward_sm90_schedule(call.problem(), config, mask.get(), caps).items) {
    order += fmt::format("{}{}.{}.{}", order.empty() ? "" : " ", item.batch, item.head, item.q_tile);
  }
  return order;
}

// K and V of a head take 256 keys * 128 * 2 * 2 bytes = 128 KiB, and a third of L2 is theirs.
constexpr std::int64_t kL2ForOneHead = 3 * (128 << 10), kL2ForTwo = 2 * kL2ForOneHead;

TEST(ForwardSm90Schedule, DrawsTheLongestFirstInsideSectionsOfHeads) {
  HopperCall call = {.q_heads = 4, .kv_heads = 4, .q_rows = 256, .kv_rows = 256, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  EXPECT_EQ(drawn(call, config, kL2ForOneHead), "0.0.1 0.0.0 0.1.1 0.1.0 0.2.1 0.2.0 0.3.1 0.3.0");
  EXPECT_EQ(drawn(call, config, kL2ForTwo - 1), "0.0.1 0.0.0 0.1.1 0.1.0 0.2.1 0.2.0 0.3.1 0.3.0");
  EXPECT_EQ(drawn(call, config, kL2ForTwo), "0.0.1 0.1.1 0.0.0 0.1.0 0.2.1 0.3.1 0.2.0 0.3.0");
  // Three fit, but sections of 3 and 1 would be uneven.
  EXPECT_EQ(drawn(call, config, 3 * kL2ForOneHead), drawn(call, config, kL2ForTwo));
  call.mask = {};
  EXPECT_EQ(drawn(call, config, kL2ForTwo), "0.0.0 0.0.1 0.1.0 0.1.1 0.2.0 0.2.1 0.3.0 0.3.1");
}

TEST(ForwardSm90Schedule, KeepsTheHeadsOfOneKeyHeadTogether) {
  HopperCall call = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 256, .kv_rows = 256, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.1 0.1.1 0.0.0 0.1.0 0.2.1 0.3.1 0.2.0 0.3.0 1.0.1 1.1.1 1.0.0 1.1.0 1.2.1 1.3.1 1.2.0 1.3.0");
  call.shared_kv = true;
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.1 0.1.1 1.0.1 1.1.1 0.0.0 0.1.0 1.0.0 1.1.0 0.2.1 0.3.1 1.2.1 1.3.1 0.2.0 0.3.0 1.2.0 1.3.0");
}

// Of tiles with six to one key blocks the shortest is 8 % of the work, the two shortest are 19.
TEST(ForwardSm90Schedule, PutsTheShortestTilesLast) {
  HopperCall call = {.q_heads = 2, .kv_heads = 2, .q_rows = 768, .kv_rows = 768, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.5 0.0.4 0.0.3 0.0.2 0.0.1 0.1.5 0.1.4 0.1.3 0.1.2 0.1.1 0.0.0 0.1.0");
  // Where all are as long, none is.
  call.mask = {};
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.0 0.0.1 0.0.2 0.0.3 0.0.4 0.0.5 0.1.0 0.1.1 0.1.2 0.1.3 0.1.4 0.1.5");
}

// Causal tiles differ 64 times in length; a section has two heads. Without short tiles at the end the longest CTA has
// 11 % more than the mean.
TEST(ForwardSm90Schedule, IsEvenWhereSectionsAreShort) {
  const HopperCall call = {
      .batch = 2, .q_heads = 8, .kv_heads = 8, .q_rows = 8192, .kv_rows = 8192, .dim = 256, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(256, 2, 64, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, 64});
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
  double total = 0;
  for (const shared::WorkItem& item : schedule.items) total += clocks_of(schedule, config, item);
  EXPECT_LE(schedule.longest, 1.01 * total / 132);
}

TEST(ForwardSm90Schedule, StaysSmallForLongSequences) {
  const HopperCall causal = {
      .q_heads = 16, .kv_heads = 16, .q_rows = 1 << 20, .kv_rows = 1 << 20, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  const std::shared_ptr<const BlockMask> mask = causal.rows_of({64, 128});
  const TileSchedule schedule = plan::forward_sm90_schedule(causal.problem(), config, mask.get(), h200());
  EXPECT_EQ(schedule.items.size(), 16U * 8192);
  EXPECT_LE(schedule.runs.size(), 2U * 8192);
  expect_balanced(config, schedule, h200());
}

TEST(ForwardSm90Schedule, IsTheSameEachTime) {
  const HopperCall call = {
      .batch = 3, .q_heads = 5, .kv_heads = 5, .q_rows = 3000, .kv_rows = 3000, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 3, 80, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, 80});
  const auto places = [&] {
    std::vector<TileKey> order;
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
    for (const shared::WorkItem& item : schedule.items) order.emplace_back(item.batch, item.head, item.q_tile);
    return std::pair(order, schedule.ctas);
  };
  EXPECT_EQ(places(), places());
}

}  // namespace
}  // namespace heddle::test
