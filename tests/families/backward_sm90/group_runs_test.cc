// The queries that a tile of keys walks where several query heads read it: each block of each head once, heads
// together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/tiles/backward_schedule.h"
#include "problem/problem.h"

namespace heddle::test {
namespace {

problem::AttentionProblem grouped(std::int64_t group, std::int64_t queries) {
  problem::AttentionProblem problem{};
  problem.batch = 2;
  problem.kv_heads = 2;
  problem.q_heads = 2 * group;
  problem.qk_dim = problem.v_dim = 64;
  problem.q_rows = queries;
  problem.kv_rows = 300;
  problem.sequences.assign(2, {.q_len = queries, .kv_len = 300});
  return problem;
}

TEST(GroupRuns, HaveEachBlockOfEachHeadOnce) {
  for (const std::int64_t group : {1, 3}) {
    for (const std::int64_t queries : {64, 500, 1300, 20000}) {
      const auto schedule =
          plan::backward_schedule(grouped(group, queries), plan::TileRows::keys, {2, 64}, false, nullptr);
      const std::int64_t blocks = (queries + 63) / 64;
      for (const shared::BackwardItem& item : schedule.items) {
        std::vector<int> seen(static_cast<std::size_t>(group * blocks));
        for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
          const shared::QueryRun& run = schedule.runs[static_cast<std::size_t>(r)];
          ASSERT_EQ(run.head / group, item.kv_head);
          for (int block = run.begin; block < run.end; ++block) {
            ++seen[static_cast<std::size_t>(run.head % group * blocks + block)];
          }
        }
        EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; })) << group << " x " << queries;
        EXPECT_EQ(item.steps, group * blocks);
      }
    }
  }
}

TEST(GroupRuns, HeadsWalkThePartsOfTheirQueriesTogether) {
  const auto schedule = plan::backward_schedule(grouped(3, 64 * 20), plan::TileRows::keys, {2, 64}, false, nullptr);
  const shared::BackwardItem& item = schedule.items.front();
  ASSERT_EQ(item.runs, 9);
  const std::vector<int> begins = {16, 16, 16, 8, 8, 8, 0, 0, 0};
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const shared::QueryRun& run = schedule.runs[static_cast<std::size_t>(item.first_run) + i];
    EXPECT_EQ(run.begin, begins[i]);
    EXPECT_EQ(run.head % 3, static_cast<int>(i % 3));
  }
}

// 131,072 queries of eight heads: the list of a tile stays short.
TEST(GroupRuns, AreFew) {
  const auto schedule = plan::backward_schedule(grouped(8, 131072), plan::TileRows::keys, {2, 64}, false, nullptr);
  EXPECT_LE(schedule.items.front().runs, 16 * 8);
}

}  // namespace
}  // namespace heddle::test
