// The Hopper family's cost model: the steps of a kernel.
#include "families/forward_sm90/forward_sm90_costs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "families/forward_sm90/forward_sm90.h"
#include "plan/hopper/sm90_chip.h"

namespace heddle::test {
namespace {

using shared::ForwardSm90Config;

TEST(ForwardSm90Costs, GrowWithTheWork) {
  const auto* row = std::ranges::find_if(plan::kForwardSm90Kernels, [](const plan::ForwardSm90Kernel& kernel) {
    return kernel.qk_dim == 128 && kernel.kv_block == 128;
  });
  ForwardSm90Config narrow = row->config();
  const plan::TileClocks clocks = plan::forward_sm90_clocks(narrow);
  EXPECT_GE(clocks.full_step, 2048);  // what the tensor cores alone take
  EXPECT_EQ(clocks.partial_step, clocks.full_step);
  EXPECT_GT(clocks.tile, 0);
  narrow.masked = true;
  const plan::TileClocks masked = plan::forward_sm90_clocks(narrow);
  EXPECT_GE(masked.full_step, 2048);
  EXPECT_GT(masked.partial_step, masked.full_step);
  EXPECT_EQ(plan::forward_sm90_seconds({}), plan::kSm90Rates.launch_seconds);
  plan::TileSchedule schedule;
  schedule.longest = 1e6;
  EXPECT_DOUBLE_EQ(plan::forward_sm90_seconds(schedule),
                   plan::kSm90Rates.launch_seconds + 1e6 / plan::kSm90Rates.clocks_per_second);
  // A shape without a measurement is no error.
  ForwardSm90Config other = narrow;
  other.kv_block = 112;
  EXPECT_GT(plan::forward_sm90_clocks(other).full_step, 1792);
}

// Kernels with a mask are other code, with a stretch of their own.
TEST(ForwardSm90Costs, KernelsWithAMaskHaveTheirOwn) {
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    ForwardSm90Config config = kernel.config();
    const double plain = plan::forward_sm90_clocks(config).full_step;
    config.masked = true;
    const plan::TileClocks masked = plan::forward_sm90_clocks(config);
    EXPECT_NEAR(masked.full_step / plain, kernel.masked_stretch / kernel.stretch, 1e-12);
    EXPECT_EQ(masked.partial_step, masked.full_step + kernel.partial_clocks);
  }
}

// 80 keys lie in five boxes of a page of 128, 128 in one.
TEST(ForwardSm90Costs, ManyBoxesOfPagesTakeLongerThanTheirStep) {
  const auto clocks_of = [](int kv_block, int page_rows, int streamed_bytes = 0) {
    const auto* row = std::ranges::find_if(plan::kForwardSm90Kernels, [&](const plan::ForwardSm90Kernel& kernel) {
      return kernel.qk_dim == 128 && kernel.v_dim == 128 && kernel.kv_block == kv_block;
    });
    ForwardSm90Config config = row->config();
    config.page_rows = page_rows;
    config.streamed_bytes = streamed_bytes;
    return plan::forward_sm90_clocks(config);
  };
  constexpr double kBox = plan::kSm90Rates.page_box_clocks;
  EXPECT_DOUBLE_EQ(clocks_of(80, 128).full_step, 5 * 2 * kBox);
  EXPECT_GT(clocks_of(80, 128).full_step, clocks_of(80, 0).full_step);
  EXPECT_DOUBLE_EQ(clocks_of(128, 128).full_step, clocks_of(128, 0).full_step);
  EXPECT_DOUBLE_EQ(clocks_of(128, 16).full_step, 8 * 2 * kBox);
  // The loads do not depend on which warpgroups attend the step. One warp does them where the other one streams.
  EXPECT_DOUBLE_EQ(clocks_of(80, 16).loads, 5 * 2 * kBox);
  EXPECT_DOUBLE_EQ(clocks_of(128, 16, 2).full_step, 2 * 8 * 2 * kBox);
  // Rows that are gathered, of 256 bytes.
  constexpr double kRow = plan::kSm90Rates.gather_row_clocks + 16 * plan::kSm90Rates.gather_copy_clocks;
  EXPECT_DOUBLE_EQ(clocks_of(128, 3).full_step, 2 * 128 * kRow);
  EXPECT_DOUBLE_EQ(clocks_of(128, 3, 2).full_step, 2 * 2 * 128 * kRow);
}

}  // namespace
}  // namespace heddle::test
