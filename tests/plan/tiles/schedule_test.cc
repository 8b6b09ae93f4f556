// The lists that a launch of the Hopper family walks: every tile once, its runs those of the block mask. Their order:
// schedule_order_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "heddle/mods.h"
#include "mask/random_mask.h"
#include "plan/tiles/schedule_checks.h"

namespace heddle::test::schedules {
namespace {

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

/// Lengths from 0 to the padded sizes, or parts of a packed batch; starts in some of them.
void draw_sequences(RandomMasks& random, HopperCall& call, std::vector<Tensor>& kept) {
  const auto keep = [&](const std::vector<std::int64_t>& values) {
    kept.push_back(Tensor::empty(DType::i64, {std::ssize(values)}));
    std::ranges::copy(values, static_cast<std::int64_t*>(kept.back().data()));
    return kept.back().view();
  };
  const auto lengths = [&](std::int64_t most) {
    std::vector<std::int64_t> drawn;
    for (std::int64_t b = 0; b < call.batch; ++b) drawn.push_back(random.below(static_cast<int>(most) + 1));
    return drawn;
  };
  const std::vector<std::int64_t> q = lengths(call.q_rows), kv = lengths(call.kv_rows), starts = lengths(100);
  if (random.below(2) == 0) {
    call.options.q_lengths = keep(q);
    call.options.kv_lengths = keep(kv);
  } else {
    const auto sums = [](const std::vector<std::int64_t>& parts) {
      std::vector<std::int64_t> all = {0};
      for (const std::int64_t part : parts) all.push_back(all.back() + part);
      return all;
    };
    call.options.cu_seqlens_q = keep(sums(q));
    call.options.cu_seqlens_kv = keep(sums(kv));
    call.q_rows = sums(q).back();
    call.kv_rows = sums(kv).back();
    call.batch = 1;
    call.shared_kv = false;
  }
  if (random.below(2) == 0) call.options.q_start = keep(starts);
}

TEST(ForwardSm90Schedule, WalksTheBlocksOfEachSequence) {
  constexpr std::array<std::int64_t, 5> lengths{1, 64, 130, 257, 449};
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomMasks random(1000 + seed);
    const auto below = [&](int bound) { return random.below(bound); };
    const auto length = [&] { return lengths[static_cast<std::size_t>(below(lengths.size()))]; };
    HopperCall call = {.batch = 1 + below(5),
                       .q_heads = 2,
                       .kv_heads = 1 + below(2),
                       .q_rows = length(),
                       .kv_rows = length(),
                       .shared_kv = below(3) == 0};
    std::vector<Tensor> kept;
    draw_sequences(random, call, kept);
    const bool masked = below(3) > 0;
    if (masked)
      call.mask = below(2) == 0 ? mods::causal_lower_right() : leaf::kv_token() <= leaf::q_token() + leaf::b();
    ForwardSm90Config config = config_of(128, 1 + below(3), 16 * (1 + below(8)), masked);
    config.descending = below(2) == 0;
    const std::shared_ptr<const BlockMask> mask = call.rows_of({64 * (1 + below(2)), config.kv_block * (1 + below(2))});
    device::CudaCaps caps = h200();
    caps.multiprocessors = 1 + below(20);
    expect_valid(call.problem(), config, mask.get(), caps);
  }
}

// Equal lengths share their rows of blocks, also where others lie between them.
TEST(ForwardSm90Schedule, SequencesOfOneLengthShareRows) {
  HopperCall call = {.batch = 4, .q_rows = 512, .kv_rows = 512};
  const std::array<std::int64_t, 4> lengths = {512, 100, 512, 100}, starts = {0, 0, 7, 0};
  call.options.kv_lengths = ConstTensorView(lengths.data(), DType::i64, {4});
  call.options.q_start = ConstTensorView(starts.data(), DType::i64, {4});
  const ForwardSm90Config config = config_of(128, 2, 128);
  EXPECT_EQ(plan::forward_sm90_schedule(call.problem(), config, nullptr, h200()).runs.size(), 2U);
  call.mask = leaf::q_idx() != leaf::kv_idx();
  const std::shared_ptr<const BlockMask> mask = call.rows_of({512, 128});
  // The last sequence has the second one's rows; the third begins elsewhere.
  EXPECT_EQ(plan::forward_sm90_schedule(call.problem(), config_of(128, 2, 128, true), mask.get(), h200()).runs.size(),
            3U);
}

// Keys that count from elsewhere are seen by other queries.
TEST(ForwardSm90Schedule, SequencesOfOtherKvStartsHaveTheirOwnRows) {
  HopperCall call = {.batch = 3, .q_rows = 512, .kv_rows = 512};
  const std::array<std::int64_t, 3> starts = {0, 256, 0};
  call.options.kv_start = ConstTensorView(starts.data(), DType::i64, {3});
  call.mask = mods::causal();
  const ForwardSm90Config config = config_of(128, 2, 128, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({128, 128});
  expect_valid(call.problem(), config, mask.get(), h200());
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
  std::map<int, int> steps;  // of each sequence's tiles
  for (const shared::WorkItem& item : schedule.items) steps[item.batch] += item.head == 0 ? item.steps : 0;
  EXPECT_EQ(steps[0], 1 + 2 + 3 + 4);
  EXPECT_EQ(steps[1], 1 + 2) << "the first 256 queries stand before all keys";
  EXPECT_EQ(steps[2], steps[0]);
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
  // Queries from 64 on alone attend, and these all keys.
  HopperCall call = {.q_rows = 192, .kv_rows = 160, .mask = leaf::q_idx() >= 64};
  const ForwardSm90Config config = config_of(128, 3, 80, true);
  const std::shared_ptr<const BlockMask> mask = call.rows_of({64, 80});
  expect_valid(call.problem(), config, mask.get(), h200());
  const TileSchedule schedule = plan::forward_sm90_schedule(call.problem(), config, mask.get(), h200());
  ASSERT_EQ(schedule.fills.size(), 1U);
  const auto [row, rows, head, batch] = schedule.fills[0];
  EXPECT_EQ(std::tie(row, rows, head, batch), std::tuple(0, 64, 0, 0));
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
    EXPECT_EQ(schedule.fills.size(), 2U * 3 * 5);  // 300 queries, 64 at a time
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

}  // namespace
}  // namespace heddle::test::schedules
