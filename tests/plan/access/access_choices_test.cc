// The planner's choices where TMA does not reach the tensors: copies beside gathers, and the warps and the memory that
// they leave.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/hopper.h"
#include "plan/hopper/sm90_chip.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// The planner's choices for these tensors.
std::vector<plan::Choice> choices_of(const HopperCall& call, const AttentionTensors& given,
                                     std::int64_t page_rows = 0) {
  problem::AttentionProblem problem = call.problem();
  problem.page_rows = page_rows;
  return plan::forward_sm90(problem, given, call.all_options(), h200(),
                            [&](BlockSize block) { return call.rows_of(block); });
}

// One of the two warps that transpose values goes on transposing, the other brings pages.
TEST(AccessChoices, EightBitsLeaveOneWarpToPages) {
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    const HopperCall call = {
        .batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 512, .kv_rows = 512, .dim = dim, .dtype = DType::e4m3};
    AttentionTensors given = call.tensors();
    const auto expect_all = [](const std::vector<plan::Choice>& choices) {
      ASSERT_FALSE(choices.empty());
      for (const plan::Choice& choice : choices) {
        const shared::ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
        const bool pages = config.page_rows > 0;
        EXPECT_EQ(config.orders() ? config.gather_warps() : 0, pages ? 1 : 0);
        EXPECT_EQ(config.transposers(), pages ? 1 : 2);
        EXPECT_TRUE(!config.gathers() || config.warpgroups == 2);
        EXPECT_LE(shared::forward_sm90_memory(config).bytes, plan::kSm90SharedMemory);
      }
    };
    expect_all(choices_of(call, given));
    const std::vector<plan::Choice> paged = choices_of(call, given, 16);
    expect_all(paged);
    EXPECT_TRUE(dim > 128 || std::ranges::any_of(paged, [](const plan::Choice& choice) {
                  return choice.plan.part<shared::ForwardSm90Config>().warpgroups == 3 &&
                         choice.plan.part<shared::ForwardSm90Config>().page_rows == 16;  // TMA brings them
                }));
    expect_all(choices_of(call, given, 3));
    given.q.strides[2] += 1;
    expect_all(choices_of(call, given));
    given = call.tensors();
    given.o.strides[2] += 1;
    const std::vector<plan::Choice> odd = choices_of(call, given);  // the widest ones may spill
    EXPECT_TRUE(std::ranges::any_of(odd, [](const plan::Choice& choice) { return choice.plan.tile.kv == 64; }));
  }
}

// A streamed bias leaves one warp to gather, and its tiles take shared memory that orders do not have.
TEST(AccessChoices, LeavesRoomForStreamedTiles) {
  const ScopedVariable gathered("HEDDLE_COPY_BYTES", "0");
  for (const std::int64_t dim : {64, 128, 256}) {
    HopperCall call = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 512, .kv_rows = 512, .dim = dim};
    call.options.score_mod = leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
    call.options.bindings.captures["bias"] =
        ConstTensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), DType::bf16, Dims{4, 512, 512});
    const std::vector<plan::Choice> choices = choices_of(call, call.tensors(), 3);
    ASSERT_FALSE(choices.empty());
    for (const plan::Choice& choice : choices) {
      const shared::ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
      EXPECT_EQ(config.streamed_bytes, 2);
      EXPECT_TRUE(config.gathers());
      EXPECT_EQ(config.gather_warps(), 1);
      EXPECT_LE(shared::forward_sm90_memory(config).bytes, plan::kSm90SharedMemory);
    }
  }
}

// The kernels are those without copies; the copies stand at the workspace's end.
TEST(AccessChoices, CopiesArePartOfThePlan) {
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    const HopperCall call = {.batch = 2, .q_heads = 40, .kv_heads = 20, .q_rows = 500, .kv_rows = 900, .dim = dim};
    const plan::Plan plain = choices_of(call, call.tensors()).front().plan;
    AttentionTensors given = call.tensors();
    given.k.strides[2] += 1;
    const plan::Plan copying = choices_of(call, given).front().plan;
    EXPECT_EQ(copying.part<shared::ForwardSm90Config>(), plain.part<shared::ForwardSm90Config>());
    EXPECT_TRUE(!copying.copies[0] && copying.copies[1] && !copying.copies[2]);
    EXPECT_EQ(plain.workspace_bytes, 64);
    EXPECT_EQ(copying.copies[1]->offset, 64);
    const std::int64_t bytes = 2L * 20 * 900 * dim * 2;
    EXPECT_EQ(copying.workspace_bytes, 64 + bytes);
    EXPECT_DOUBLE_EQ(copying.predicted->bytes, plain.predicted->bytes + 2.0 * static_cast<double>(bytes));
    EXPECT_GT(copying.predicted->seconds, plain.predicted->seconds);
    EXPECT_THAT(copying.access, ElementsAre(HasSubstr("k is copied into the workspace by each run")));
  }
}

// Many boxes a block of keys take longer than its products; fewer do not.
TEST(AccessChoices, PagesOfTmaAreCopiedWhereTheirBoxesBind) {
  const auto copied = [](std::int64_t dim, std::int64_t page_rows) {
    const HopperCall call = {.batch = 2, .q_heads = 16, .kv_heads = 16, .q_rows = 4096, .kv_rows = 4096, .dim = dim};
    const plan::Plan plan = choices_of(call, call.tensors(), page_rows).front().plan;
    return plan.copies[1].has_value();
  };
  EXPECT_TRUE(copied(128, 16));
  EXPECT_TRUE(copied(64, 8));
  EXPECT_FALSE(copied(128, 64));
  EXPECT_FALSE(copied(64, 16));
}

// Time counts the real rows, not the room for them: one sequence of many is long.
TEST(AccessChoices, CopiesTakeTheTimeOfTheirRows) {
  std::vector<std::int32_t> lengths(64, 512);
  lengths[0] = 16000;
  HopperCall call = {.batch = 64, .q_heads = 2, .kv_heads = 2, .q_rows = 2048, .kv_rows = 16000};
  call.options.kv_lengths = ConstTensorView(lengths.data(), DType::i32, {64});
  const plan::Plan plan = choices_of(call, call.tensors(), 1).front().plan;
  ASSERT_TRUE(plan.copies[1]);
  const double room = static_cast<double>(plan.copies[1]->bytes() + plan.copies[2]->bytes());
  EXPECT_EQ(room, 2.0 * 64 * 2 * 16000 * 256);
  const double rows = 63 * 512 + 16000, read = 64.0 * 2 * 2048 * (2 * 256 + 4) + 2 * rows * 2 * 256;
  EXPECT_EQ(plan.predicted->bytes, read + 2 * 2 * rows * 2 * 256);
}

// For a bias whose rows TMA does not take: a copy where sequences share it; for one sequence, a read of each element.
TEST(AccessChoices, CapturesAreCopiedWhereThatPays) {
  const auto plan_of = [](std::int64_t batch, std::int64_t keys, const Dims& strides) {
    HopperCall call = {.batch = batch, .q_heads = 16, .kv_heads = 16, .q_rows = keys, .kv_rows = keys, .dim = 64};
    call.options.score_mod = leaf::score() + Capture("bias", DType::f32, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
    call.options.bindings.captures["bias"] =
        ConstTensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), DType::f32, Dims{16, keys, keys}, strides);
    return choices_of(call, call.tensors()).front().plan;
  };
  const plan::Plan plain = plan_of(8, 1024, {1024L * 1024, 1024, 1});
  EXPECT_FALSE(plain.copies[plan::kCopiedCapture]);
  EXPECT_EQ(plain.part<shared::ForwardSm90Config>().streamed_bytes, 4);
  EXPECT_THAT(plain.access, IsEmpty());
  const plan::Plan odd = plan_of(8, 1023, {1023L * 1023, 1023, 1});
  ASSERT_TRUE(odd.copies[plan::kCopiedCapture]);
  EXPECT_EQ(odd.copies[plan::kCopiedCapture]->bytes(), 16 * 1023 * 4096);
  EXPECT_EQ(odd.part<shared::ForwardSm90Config>().streamed_bytes, 4);
  EXPECT_THAT(odd.access, ElementsAre("a capture is copied into the workspace by each run: capture 'bias': its strides "
                                      "are [1046529, 1023, 1], and TMA takes multiples of 4 elements, from 0 on and "
                                      "below 274877906944"));
  EXPECT_THAT(odd.rejected, Contains(HasSubstr("would read capture 'bias' element by element")));
  const plan::Plan alone = plan_of(1, 4095, {4095L * 4095, 4095, 1});
  EXPECT_FALSE(alone.copies[plan::kCopiedCapture]);
  EXPECT_EQ(alone.part<shared::ForwardSm90Config>().streamed_bytes, 0);
  EXPECT_THAT(alone.access, ElementsAre(HasSubstr("a capture is read element by element: capture 'bias'")));
  // If a buffer has more rows than there are queries, only the queries' rows are copied.
  HopperCall call = {.batch = 8, .q_heads = 16, .kv_heads = 16, .q_rows = 64, .kv_rows = 1023, .dim = 64};
  call.options.score_mod = leaf::score() + Capture("bias", DType::f32, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  call.options.bindings.captures["bias"] =
      ConstTensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), DType::f32, Dims{16, 2047, 2047});
  const plan::Plan few = choices_of(call, call.tensors()).front().plan;
  ASSERT_TRUE(few.copies[plan::kCopiedCapture]);
  EXPECT_EQ(few.copies[plan::kCopiedCapture]->bytes(), 16 * 64 * 4096);
  const plan::Plan shared = plan_of(8, 1023, {0, 0, 1});
  EXPECT_FALSE(shared.copies[plan::kCopiedCapture]);
  EXPECT_EQ(shared.part<shared::ForwardSm90Config>().streamed_bytes, 4);
  const ScopedVariable less("HEDDLE_COPY_BYTES", "1M");
  const plan::Plan large = plan_of(8, 1023, {1023L * 1023, 1023, 1});
  EXPECT_EQ(large.part<shared::ForwardSm90Config>().streamed_bytes, 0);
  EXPECT_THAT(large.access, ElementsAre(HasSubstr("; a copy would take 67043328 bytes, and up to 1048576 are taken "
                                                  "(HEDDLE_COPY_BYTES)")));
}

// Few queries are not worth a copy of all keys; of many it takes little. What was not taken is said.
TEST(AccessChoices, PagesAreCopiedWhereThatPays) {
  for (const std::int64_t dim : {64, 128}) {
    for (const bool many : {false, true}) {
      const HopperCall call = {
          .batch = 8, .q_heads = 16, .kv_heads = 16, .q_rows = many ? 4096 : 16, .kv_rows = 16384, .dim = dim};
      const std::vector<plan::Choice> choices = choices_of(call, call.tensors(), 1);
      const plan::Plan& first = choices.front().plan;
      EXPECT_EQ(first.copies[1].has_value(), many);
      EXPECT_EQ(first.part<shared::ForwardSm90Config>().gathers(), !many);
      EXPECT_THAT(first.rejected,
                  Contains(HasSubstr(many ? ", of gathered rows: predicted" : ", of copied pages: predicted")));
      EXPECT_THAT(first.rejected, Contains(HasSubstr("3 warpgroups: gathers rows")));
    }
  }
}

}  // namespace
}  // namespace heddle::test
