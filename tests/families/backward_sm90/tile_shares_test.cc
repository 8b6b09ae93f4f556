// Tiles that CTAs share: together they walk each step of a tile once, in order, and no list ends later than before.
#include "families/backward_sm90/tile_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "families/backward_sm90/backward_sm90.h"

namespace heddle::test {
namespace {

using plan::BackwardSchedule;
using shared::BackwardItem;
using shared::QueryRun;

constexpr int kMultiprocessors = 132;

problem::AttentionProblem of_lengths(std::int64_t batch, std::int64_t kv_heads, std::int64_t group, std::int64_t rows,
                                     int dim) {
  problem::AttentionProblem problem{};
  problem.batch = batch;
  problem.kv_heads = kv_heads;
  problem.q_heads = kv_heads * group;
  problem.qk_dim = problem.v_dim = dim;
  problem.q_rows = problem.kv_rows = rows;
  problem.sequences.assign(static_cast<std::size_t>(batch), {.q_len = rows, .kv_len = rows});
  problem.wanted.q = problem.wanted.k = problem.wanted.v = true;
  return problem;
}

shared::BackwardSm90Config of_dim(int dim) {
  shared::BackwardSm90Config config;
  config.qk_dim = config.v_dim = config.columns = dim;
  config.warpgroups = 2;
  config.d_q = true;
  return config;
}

/// Keeps of each tile the queries from its own keys on, as a causal mask does.
void make_causal(BackwardSchedule& schedule) {
  for (BackwardItem& item : schedule.items) {
    QueryRun run = schedule.runs[static_cast<std::size_t>(item.first_run)];
    run.begin = 2 * item.kv_tile;
    item.first_run = static_cast<int>(schedule.runs.size());
    item.runs = 1;
    item.steps = run.end - run.begin;
    schedule.runs.push_back(run);
  }
  std::ranges::stable_sort(schedule.items, std::ranges::greater(), &BackwardItem::steps);
}

/// When a list ends whose items are begun in order.
double end_of(const std::vector<BackwardItem>& items, const plan::BackwardClocks& clocks) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free(
      {}, std::vector<double>(static_cast<std::size_t>(kMultiprocessors)));
  double end = 0;
  for (const BackwardItem& item : items) {
    const double own_end = free.top() + clocks.tile + clocks.step * item.steps;
    free.pop();
    free.push(own_end);
    end = std::max(end, own_end);
  }
  return end;
}

using Tile = std::tuple<int, int, int>;
Tile tile_of(const BackwardItem& item) { return {item.batch, item.kv_head, item.kv_tile}; }

std::vector<std::pair<int, int>> steps_of(const BackwardSchedule& schedule, const BackwardItem& item) {
  std::vector<std::pair<int, int>> steps;  // query heads and blocks
  for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
    const QueryRun& run = schedule.runs[static_cast<std::size_t>(r)];
    for (int block = run.begin; block < run.end; ++block) steps.emplace_back(run.head, block);
  }
  return steps;
}

/// Shares belong together: numbers 0, 1, .. of as many as each of them says, in the order of the list, at places of
/// their own, and the steps of one stand behind those of the one before.
void expect_whole(const BackwardSchedule& before, const BackwardSchedule& after, int places) {
  std::map<Tile, std::map<int, BackwardItem>> shares;
  std::set<int> taken;
  for (const BackwardItem& item : after.items) {
    const int count = shared::shares_of(item.share), number = shared::number_of_share(item.share);
    ASSERT_EQ(number, std::ssize(shares[tile_of(item)]));
    shares[tile_of(item)].emplace(number, item);
    ASSERT_EQ(static_cast<std::int64_t>(steps_of(after, item).size()), item.steps);
    if (count == 0) continue;
    ASSERT_LE(count, shared::kMostShares);
    ASSERT_GT(item.steps, 0);
    const int place = shared::first_place_of(item.share) + number;
    EXPECT_LT(place, places);
    EXPECT_TRUE(taken.insert(place).second);
  }
  EXPECT_EQ(std::ssize(taken), places);
  for (const BackwardItem& item : before.items) {
    std::vector<std::pair<int, int>> steps;
    for (const auto& [number, share] : shares[tile_of(item)]) {
      EXPECT_EQ(shared::shares_of(share.share),
                shares[tile_of(item)].size() > 1 ? std::ssize(shares[tile_of(item)]) : 0);
      for (const auto& step : steps_of(after, share)) steps.push_back(step);
    }
    EXPECT_EQ(steps, steps_of(before, item));
  }
}

struct Case {
  std::int64_t batch, kv_heads, group, rows;
  int dim;
  bool causal = false;
};

TEST(TileShares, TogetherAreTheTiles) {
  for (const Case& at :
       {Case{1, 1, 1, 128, 64}, Case{1, 1, 1, 16384, 128}, Case{1, 8, 1, 1024, 64}, Case{2, 16, 1, 2048, 128},
        Case{1, 16, 1, 16384, 128}, Case{1, 4, 8, 2048, 128}, Case{1, 32, 1, 4096, 64}, Case{3, 5, 3, 700, 64},
        Case{1, 8, 1, 4096, 128, true}, Case{1, 16, 1, 8192, 128, true}, Case{2, 3, 1, 1000, 64, true}}) {
    SCOPED_TRACE(testing::Message() << at.batch << " x " << at.kv_heads << " x " << at.group << ", " << at.rows
                                    << " rows, " << at.dim << (at.causal ? ", causal" : ""));
    const problem::AttentionProblem problem = of_lengths(at.batch, at.kv_heads, at.group, at.rows, at.dim);
    const shared::BackwardSm90Config config = of_dim(at.dim);
    BackwardSchedule before = plan::backward_schedule(problem, plan::TileRows::keys, config.tile(), false, nullptr);
    if (at.causal) make_causal(before);
    BackwardSchedule after = before;
    const int places = plan::share_tiles(config, kMultiprocessors, std::ssize(after.items), after);
    expect_whole(before, after, places);
    shared::BackwardSm90Config timed = config;
    timed.d_q_apart = at.dim == 64;
    const plan::BackwardClocks clocks = plan::backward_sm90_clocks(timed);
    EXPECT_LE(end_of(after.items, clocks), end_of(before.items, clocks));
  }
}

// 2048 equal tiles of 128 steps are 15.5 times 132: without shares the last half of the time half of all
// multiprocessors do nothing.
TEST(TileShares, NearlyAllWorkUntilTheEnd) {
  const problem::AttentionProblem problem = of_lengths(2, 16, 1, 8192, 128);
  const shared::BackwardSm90Config config = of_dim(128);
  BackwardSchedule schedule = plan::backward_schedule(problem, plan::TileRows::keys, config.tile(), false, nullptr);
  const plan::BackwardClocks clocks = plan::backward_sm90_clocks(config);
  const double whole = end_of(schedule.items, clocks),
               equal = 2048 * (128 * clocks.step + clocks.tile) / kMultiprocessors;
  EXPECT_GT(whole, 1.03 * equal);
  EXPECT_GT(plan::share_tiles(config, kMultiprocessors, std::ssize(schedule.items), schedule), 0);
  EXPECT_LT(end_of(schedule.items, clocks), 1.008 * equal);
}

// 1024 equal tiles are 7.8 times 132: the last 100 are cut, and none of those that begin together before.
TEST(TileShares, TheShortestEndThatDoesIsCut) {
  const problem::AttentionProblem problem = of_lengths(8, 8, 8, 2048, 128);
  const shared::BackwardSm90Config config = of_dim(128);
  BackwardSchedule schedule = plan::backward_schedule(problem, plan::TileRows::keys, config.tile(), false, nullptr);
  ASSERT_EQ(schedule.items.size(), 1024U);
  EXPECT_GT(plan::share_tiles(config, kMultiprocessors, std::ssize(schedule.items), schedule), 0);
  const auto first = std::ranges::find_if(schedule.items, [](const BackwardItem& item) { return item.share != 0; });
  EXPECT_EQ(first - schedule.items.begin(), 924);
}

// Eight tiles of few heads and 132 multiprocessors.
TEST(TileShares, FewTilesAreSharedByMany) {
  const problem::AttentionProblem problem = of_lengths(1, 1, 1, 1024, 64);
  const shared::BackwardSm90Config config = of_dim(64);
  BackwardSchedule schedule = plan::backward_schedule(problem, plan::TileRows::keys, config.tile(), false, nullptr);
  ASSERT_EQ(schedule.items.size(), 8U);
  EXPECT_GE(plan::share_tiles(config, kMultiprocessors, 8, schedule), 16);
  EXPECT_LE(schedule.longest, 8);
}

TEST(TileShares, ListsThatEndWellStay) {
  const problem::AttentionProblem problem = of_lengths(1, 33, 1, 1024, 128);  // 264 tiles
  const shared::BackwardSm90Config config = of_dim(128);
  BackwardSchedule schedule = plan::backward_schedule(problem, plan::TileRows::keys, config.tile(), false, nullptr);
  EXPECT_EQ(plan::share_tiles(config, kMultiprocessors, std::ssize(schedule.items), schedule), 0);
  EXPECT_EQ(schedule.items.size(), 264U);
}

}  // namespace
}  // namespace heddle::test
