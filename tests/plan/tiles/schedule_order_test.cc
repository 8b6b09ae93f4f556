// The order in which the tiles of a launch of the Hopper family are drawn, and how even it leaves the CTAs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "heddle/mods.h"
#include "plan/tiles/schedule_checks.h"

namespace heddle::test::schedules {
namespace {

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

// With tiles of six to one key blocks, the shortest is 8 % of the work and the two shortest are 19 %.
TEST(ForwardSm90Schedule, PutsTheShortestTilesLast) {
  HopperCall call = {.q_heads = 2, .kv_heads = 2, .q_rows = 768, .kv_rows = 768, .mask = mods::causal()};
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  EXPECT_EQ(drawn(call, config, kL2ForOneHead),
            "0.0.5 0.0.4 0.0.3 0.0.2 0.0.1 0.1.5 0.1.4 0.1.3 0.1.2 0.1.1 0.0.0 0.1.0");
  // If all are equally long, none moves.
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
  const auto offsets = [&] {
    std::vector<TileKey> order;
    const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
    for (const shared::WorkItem& item : schedule.items) order.emplace_back(item.batch, item.head, item.q_tile);
    return std::pair(order, schedule.ctas);
  };
  EXPECT_EQ(offsets(), offsets());
}

}  // namespace
}  // namespace heddle::test::schedules
