// Kernels of the Hopper family whose shared memory holds a table of score_mod (Swin's: a relative position in two
// dimensions): which have room, and when each pair reads the table instead.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/factors.h"
#include "plan/hopper.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::test {
namespace {

using plan::Choice;
using shared::ForwardSm90Config;
using testing::Contains;
using testing::HasSubstr;

/// Windows of side x side tokens, one after the other, and a table of two positions in them.
HopperCall windows(std::int32_t side, std::int64_t dim, DType dtype = DType::bf16) {
  HopperCall call = {
      .batch = 2, .q_heads = 16, .kv_heads = 16, .q_rows = 8192, .kv_rows = 8192, .dim = dim, .dtype = dtype};
  const Expr q = leaf::q_idx() % (side * side), kv = leaf::kv_idx() % (side * side);
  const std::int32_t wide = 2 * side - 1;
  const Expr index =
      (floor_div(q, side) - floor_div(kv, side) + (side - 1)) * wide + (q % side - kv % side + (side - 1));
  call.options.score_mod = leaf::score() + Capture("table", DType::f32, 2)(index, leaf::h());
  call.options.bindings.captures["table"] =
      ConstTensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), DType::f32, {std::int64_t{wide} * wide, 16});
  return call;
}

std::vector<Choice> choices_of(const HopperCall& call) {
  return plan::forward_sm90(call.problem(), call.tensors(), call.all_options(), h200(),
                            [&](BlockSize block) { return call.rows_of(block); });
}

/// "192 x 80", and of which table.
std::string first_of(const HopperCall& call) {
  const plan::Plan first = choices_of(call).front().plan;
  return fmt::format("{} x {}, table of {}", first.tile.q, first.tile.kv,
                     first.part<shared::ForwardSm90Config>().table_entries);
}

TEST(ForwardSm90Tables, AreHeldByTheFastestKernelThatHasRoom) {
  EXPECT_EQ(first_of(windows(32, 64)), "192 x 128, table of 3969");
  EXPECT_EQ(first_of(windows(48, 64)), "192 x 128, table of 9025");
  EXPECT_EQ(first_of(windows(32, 128)), "192 x 80, table of 3969");
  // 128 x 128 has no room for this one, and is not asked for it.
  EXPECT_EQ(first_of(windows(48, 128)), "192 x 80, table of 9025");
  // Nor has 192 x 80 for this one, so a spare kernel is taken.
  EXPECT_EQ(first_of(windows(56, 128)), "128 x 64, table of 12321");
  EXPECT_EQ(first_of(windows(48, 256)), "128 x 32, table of 9025");
  EXPECT_EQ(first_of(windows(64, 128)), "128 x 128, table of 0");
}

TEST(ForwardSm90Tables, GiveNoKernelMoreMemoryThanThereIs) {
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    for (const DType dtype : {DType::bf16, DType::e4m3}) {
      for (const std::int32_t side : {8, 24, 48, 56, 64}) {
        for (const Choice& choice : choices_of(windows(side, dim, dtype))) {
          EXPECT_LE(shared::forward_sm90_memory(choice.plan.part<shared::ForwardSm90Config>()).bytes,
                    plan::kSm90SharedMemory);
        }
      }
    }
  }
}

// 8 bits at D 192: 128 x 64 has room for 11025 entries; for 15129 only 128 x 32 has, which is predicted 1.5 times as
// slow as 128 x 96.
TEST(ForwardSm90Tables, AreReadForEachPairWhereTheKernelWithRoomIsMuchSlower) {
  EXPECT_EQ(first_of(windows(53, 192, DType::e4m3)), "128 x 64, table of 11025");
  EXPECT_EQ(first_of(windows(62, 192, DType::e4m3)), "128 x 96, table of 0");
  const std::vector<Choice> choices = choices_of(windows(62, 192, DType::e4m3));
  const plan::Plan& first = choices.front().plan;
  const auto held = std::ranges::find_if(choices, [](const Choice& choice) {
    return choice.plan.part<shared::ForwardSm90Config>().table_entries == 123 * 123;
  });
  ASSERT_NE(held, choices.end());
  EXPECT_EQ(held->plan.tile, (BlockSize{128, 32}));
  EXPECT_GT(held->plan.predicted->seconds, plan::kPlannerFactors.table_reads * first.predicted->seconds);
  EXPECT_THAT(
      first.rejected,
      Contains(HasSubstr("128 queries x 32 keys, 2 warpgroups: has the table of 15129 entries in shared memory")));
}

TEST(ForwardSm90Tables, SayWhyAKernelHasNone) {
  const plan::Plan held = choices_of(windows(48, 128)).front().plan;
  EXPECT_THAT(held.rejected,
              Contains("128 queries x 128 keys, 2 warpgroups: needs 255556 bytes of shared memory of 232448 "
                       "with score_mod's table of 9025 entries, which is there twice"));
  EXPECT_THAT(held.rejected, Contains("192 queries x 80 keys, 3 warpgroups: would read the table of 9025 entries for "
                                      "each pair"));
  const plan::Plan none = choices_of(windows(64, 128)).front().plan;
  EXPECT_THAT(none.rejected, Contains(HasSubstr("numbers of keys, so each pair computes them: a table of 16129 entries "
                                                "needs ")));
}

}  // namespace
}  // namespace heddle::test
