// Which tensors TMA reaches, and how threads copy the others.
#include "plan/families/forward_sm90_access.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "plan/families/forward_sm90.h"
#include "plan/hopper.h"

namespace heddle::test {
namespace {

using plan::ForwardSm90Access;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// q and o are [2, 4, 100, 64], k and v [2, 2, 50, 64].
AttentionTensors tensors() {
  return HopperCall{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 100, .kv_rows = 50, .dim = 64}.tensors();
}
ForwardSm90Access access_of_k(const Dims& strides, std::uintptr_t address = 0) {
  AttentionTensors given = tensors();
  given.k.strides = strides;
  given.k.data = reinterpret_cast<const void*>(address);
  return plan::forward_sm90_access(given);
}

constexpr std::int64_t kEnd = std::int64_t{1} << 39;  // elements of 2 bytes

TEST(ForwardSm90Access, TmaReachesWhatItsMapsDescribe) {
  EXPECT_THAT(plan::forward_sm90_access(tensors()).reasons, IsEmpty());
  for (const Dims& strides :
       {Dims{25600, 64, 256, 1}, Dims{25600, 6400, 72, 1}, Dims{kEnd - 8, 6400, 64, 1}, Dims{8, 16, 24, 1}}) {
    const ForwardSm90Access access = access_of_k(strides, 4096 + 16);
    EXPECT_EQ(access.k_gather, 0) << to_string(strides);
    EXPECT_THAT(access.reasons, IsEmpty());
  }
}

TEST(ForwardSm90Access, ThreadsCopyAsManyBytesAsDivideEveryRow) {
  const auto bytes = [](const Dims& strides, std::uintptr_t address = 0) {
    return access_of_k(strides, address).k_gather;
  };
  EXPECT_EQ(bytes({25600, 6400, 65, 1}), 2);
  EXPECT_EQ(bytes({25604, 6400, 64, 1}), 8);
  EXPECT_EQ(bytes({25600, 6402, 64, 1}), 4);
  EXPECT_EQ(bytes({25600, 6402, 65, 1}), 2);
  EXPECT_EQ(bytes({25600, 6400, -64, 1}), 16);
  EXPECT_EQ(bytes({25600, 6400, -66, 1}), 4);
  EXPECT_EQ(bytes({25600, 0, 64, 1}), 16);
  EXPECT_EQ(bytes({0, 0, 0, 1}), 16);
  EXPECT_EQ(bytes({kEnd, 6400, 64, 1}), 16);
  EXPECT_EQ(bytes({25600, 3200, 64, 1}, 4096 + 8), 8);
  EXPECT_EQ(bytes({25600, 3200, 64, 1}, 4096 + 14), 2);
  EXPECT_EQ(bytes({25600, 3204, 64, 1}, 4096 + 4), 4);
}

TEST(ForwardSm90Access, SaysWhichAndWhy) {
  AttentionTensors given = tensors();
  given.q.data = reinterpret_cast<const void*>(std::uintptr_t{4098});
  given.v.strides = {6400, 0, 64, 1};
  given.o.strides = {25700, 6425, 66, 1};
  const ForwardSm90Access access = plan::forward_sm90_access(given);
  EXPECT_EQ(access.q_gather, 2);
  EXPECT_EQ(access.k_gather, 0);
  EXPECT_EQ(access.v_gather, 16);
  EXPECT_TRUE(access.odd_o);
  EXPECT_THAT(
      access.reasons,
      ElementsAre("q is gathered by threads, 2 bytes at a time: its address is no multiple of 16, as TMA takes",
                  "v is gathered by threads, 16 bytes at a time: its strides are [6400, 0, 64, 1], and TMA takes "
                  "positive multiples of 8 elements below 549755813888",
                  "o is stored by threads, 2 bytes at a time: its strides are [25700, 6425, 66, 1], and TMA "
                  "takes positive multiples of 8 elements below 549755813888"));
}

// Threads store it: two elements at a time where these divide its strides and its address.
TEST(ForwardSm90Access, OutputsOfOtherTypesAsk) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::e4m3}) {
    const std::int64_t bytes = size_of(dtype);
    const auto access_of_o = [&](const Dims& strides, std::int64_t address) {
      AttentionTensors given = tensors();
      given.o.dtype = dtype;
      given.o.strides = strides;
      given.o.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
      return plan::forward_sm90_access(given);
    };
    for (const Dims& strides :
         {Dims{60000, 12000, 66, 1}, Dims{60000, 12000, -66, 1}, Dims{std::int64_t{1} << 41, 2, 8, 1}}) {
      const ForwardSm90Access access = access_of_o(strides, 4096 + 2 * bytes);
      EXPECT_FALSE(access.odd_o) << name(dtype) << to_string(strides);
      EXPECT_THAT(access.reasons, IsEmpty());
    }
    const ForwardSm90Access strides = access_of_o({60000, 12000, 65, 1}, 4096);
    EXPECT_TRUE(strides.odd_o) << name(dtype);
    EXPECT_THAT(strides.reasons,
                ElementsAre(fmt::format("o is stored by threads, {} bytes at a time: its strides are [60000, 12000, "
                                        "65, 1], and pairs of elements take multiples of 2",
                                        bytes)));
    const ForwardSm90Access address = access_of_o({60000, 12000, 66, 1}, 4096 + bytes);
    EXPECT_TRUE(address.odd_o) << name(dtype);
    EXPECT_THAT(address.reasons,
                ElementsAre(fmt::format("o is stored by threads, {} bytes at a time: its address is no multiple of {}, "
                                        "as pairs of elements take",
                                        bytes, 2 * bytes)));
  }
}

TEST(ForwardSm90Access, StridesThatSayNothing) {
  const HopperCall one = {.q_rows = 1, .kv_rows = 50, .dim = 64};  // batch, heads and queries 1
  AttentionTensors given = one.tensors();
  given.q.strides = given.o.strides = {-1, 0, 7, 1};
  EXPECT_THAT(plan::forward_sm90_access(given).reasons, IsEmpty());
  given = HopperCall{.batch = 2, .kv_rows = 0}.tensors();  // no keys
  given.k.strides = given.v.strides = {0, 1, 3, 1};
  EXPECT_THAT(plan::forward_sm90_access(given).reasons, IsEmpty());
}

// In 8 bits: elements of a byte, and an o of bf16.
TEST(ForwardSm90Access, EightBits) {
  AttentionTensors given =
      HopperCall{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 100, .kv_rows = 50, .dim = 64, .dtype = DType::e4m3}
          .tensors();
  EXPECT_THAT(plan::forward_sm90_access(given).reasons, IsEmpty());
  const auto bytes = [&](const Dims& strides, std::uintptr_t address = 0, std::int64_t dim = 64) {
    AttentionTensors own = given;
    own.v.strides = strides;
    own.v.shape[3] = dim;
    own.v.data = reinterpret_cast<const void*>(address);
    return plan::forward_sm90_access(own).v_gather;
  };
  EXPECT_EQ(bytes({6400, 3200, 80, 1}, 4096 + 16), 0);
  EXPECT_EQ(bytes({2 * kEnd - 16, 3200, 64, 1}), 0);
  EXPECT_EQ(bytes({2 * kEnd, 3200, 64, 1}), 16);
  EXPECT_EQ(bytes({6400, 3200, 72, 1}), 8);
  EXPECT_EQ(bytes({6400, 3200, 64, 1}, 4096 + 4), 4);
  EXPECT_EQ(bytes({6400, 3202, 64, 1}), 2);
  EXPECT_EQ(bytes({6400, 3200, 64, 1}, 4096 + 3), 1);
  // What is read element by element is a row's, to its last byte.
  EXPECT_EQ(bytes({6400, 3200, 66, 1}, 0, 63), 1);
  EXPECT_EQ(bytes({6400, 3200, 68, 1}, 0, 63), 4);
  given.o.strides[2] = 68;
  EXPECT_THAT(plan::forward_sm90_access(given).reasons,
              ElementsAre("o is stored by threads, 2 bytes at a time: its strides are [25600, 6400, 68, 1], and TMA "
                          "takes positive multiples of 8 elements below 549755813888"));
  given.o = TensorView(nullptr, DType::e4m3, given.o.shape, given.o.strides);
  EXPECT_THAT(plan::forward_sm90_access(given).reasons, IsEmpty());  // pairs
}

// The two warps that transpose values become one that does and one that gathers.
TEST(ForwardSm90Access, EightBitsLeaveOneWarpToGather) {
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    HopperCall call = {
        .batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 512, .kv_rows = 512, .dim = dim, .dtype = DType::e4m3};
    AttentionTensors given = call.tensors();
    const auto choices_of = [&](std::int64_t page_rows) {
      problem::AttentionProblem problem = call.problem();
      problem.page_rows = page_rows;
      return plan::forward_sm90(problem, given, call.all_options(), h200(),
                                [&](BlockSize block) { return call.rows_of(block); });
    };
    const auto expect_all = [](const std::vector<plan::Choice>& choices, int gather_warps, int transposers) {
      ASSERT_FALSE(choices.empty());
      for (const plan::Choice& choice : choices) {
        const shared::ForwardSm90Config& config = *choice.plan.sm90;
        EXPECT_EQ(config.orders() ? config.gather_warps() : 0, gather_warps);
        EXPECT_EQ(config.transposers(), transposers);
        EXPECT_LE(shared::forward_sm90_memory(config).bytes, shared::kSm90SharedMemory);
      }
    };
    expect_all(choices_of(0), 0, 2);
    const std::vector<plan::Choice> paged = choices_of(16);
    expect_all(paged, 1, 1);
    EXPECT_TRUE(dim > 128 || std::ranges::any_of(paged, [](const plan::Choice& choice) {
                  return choice.plan.sm90->warpgroups == 3;  // TMA brings them
                }));
    expect_all(choices_of(3), 1, 1);
    for (const plan::Choice& choice : choices_of(3)) EXPECT_EQ(choice.plan.sm90->warpgroups, 2);
    given.q.strides[2] += 1;
    expect_all(choices_of(0), 1, 1);
    given = call.tensors();
    given.o.strides[2] += 1;
    const std::vector<plan::Choice> odd = choices_of(0);  // the widest ones may spill
    EXPECT_TRUE(std::ranges::any_of(odd, [](const plan::Choice& choice) { return choice.plan.tile.kv == 64; }));
  }
}

// A streamed bias leaves one warp to gather, and its tiles take shared memory that orders do not have.
TEST(ForwardSm90Access, LeavesRoomForStreamedTiles) {
  for (const std::int64_t dim : {64, 128, 256}) {
    HopperCall call = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 512, .kv_rows = 512, .dim = dim};
    call.options.score_mod = leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
    call.options.bindings.captures["bias"] =
        ConstTensorView(reinterpret_cast<const void*>(std::uintptr_t{4096}), DType::bf16, Dims{4, 512, 512});
    AttentionTensors given = call.tensors();
    given.k.strides[2] += 4;
    const problem::AttentionProblem problem = call.problem();
    const auto choices = plan::forward_sm90(problem, given, call.all_options(), h200(),
                                            [&](BlockSize block) { return call.rows_of(block); });
    ASSERT_FALSE(choices.empty());
    for (const plan::Choice& choice : choices) {
      const shared::ForwardSm90Config& config = *choice.plan.sm90;
      EXPECT_EQ(config.streamed_bytes, 2);
      EXPECT_EQ(config.k_gather, 8);
      EXPECT_EQ(config.gather_warps(), 1);
      EXPECT_LE(shared::forward_sm90_memory(config).bytes, shared::kSm90SharedMemory);
    }
  }
}

// Kernels of three warpgroups have no registers for it; those of two gather, and say so.
TEST(ForwardSm90Access, IsPartOfThePlan) {
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    const HopperCall call = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 500, .kv_rows = 900, .dim = dim};
    AttentionTensors given = call.tensors();
    given.k.strides[2] += 1;
    const auto choices = plan::forward_sm90(call.problem(), given, call.all_options(), h200(),
                                            [&](BlockSize block) { return call.rows_of(block); });
    ASSERT_FALSE(choices.empty());
    for (const plan::Choice& choice : choices) {
      EXPECT_EQ(choice.plan.sm90->warpgroups, 2);
      EXPECT_EQ(choice.plan.sm90->k_gather, 2);
      EXPECT_EQ(choice.plan.sm90->q_gather + choice.plan.sm90->v_gather, 0);
      EXPECT_THAT(choice.plan.access, ElementsAre(HasSubstr("k is gathered by threads, 2 bytes at a time")));
      EXPECT_THAT(to_string(choice.plan), HasSubstr("k is gathered by threads"));
    }
    if (dim != 64) continue;
    EXPECT_THAT(to_string(choices.front().plan), HasSubstr("192 queries x 128 keys, 3 warpgroups: gathers"));
  }
}

}  // namespace
}  // namespace heddle::test
