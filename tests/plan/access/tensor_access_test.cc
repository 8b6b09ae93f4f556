// Which tensors TMA reaches, which are copied first, and what of pages is gathered.
#include "plan/access/tensor_access.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/access/tensor_copies.h"
#include "plan/hopper.h"
#include "plan/hopper/sm90_chip.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using plan::TensorAccess;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

HopperCall call() { return {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 100, .kv_rows = 50, .dim = 64}; }
/// q and o are [2, 4, 100, 64], k and v [2, 2, 50, 64].
AttentionTensors tensors() { return call().tensors(); }
/// The access to tensors that are no pages.
TensorAccess access(const AttentionTensors& given) {
  const std::vector<TensorAccess> ways = plan::tensor_accesses(given, call().problem()).ways;
  EXPECT_EQ(ways.size(), 1);
  return ways.front();
}
TensorAccess access_of_k(const Dims& strides, std::uintptr_t address = 0) {
  AttentionTensors given = tensors();
  given.k.strides = strides;
  given.k.data = reinterpret_cast<const void*>(address);
  return access(given);
}

constexpr std::int64_t kEnd = std::int64_t{1} << 39;  // elements of 2 bytes

TEST(TensorAccess, TmaReachesWhatItsMapsDescribe) {
  EXPECT_THAT(access(tensors()).reasons, IsEmpty());
  for (const Dims& strides : {Dims{25600, 64, 256, 1}, Dims{25600, 6400, 72, 1}, Dims{kEnd - 8, 6400, 64, 1},
                              Dims{8, 16, 24, 1}, Dims{25600, 0, 64, 1}, Dims{0, 0, 0, 1}}) {
    const TensorAccess found = access_of_k(strides, 4096 + 16);
    EXPECT_FALSE(found.copies[1]) << to_string(strides);
    EXPECT_THAT(found.reasons, IsEmpty());
  }
}

TEST(TensorAccess, OthersAreCopied) {
  for (const Dims& strides : {Dims{25600, 6400, 65, 1}, Dims{25604, 6400, 64, 1}, Dims{25600, 6402, 64, 1},
                              Dims{25600, 6400, -64, 1}, Dims{-25600, 6400, 64, 1}, Dims{kEnd, 6400, 64, 1}}) {
    EXPECT_TRUE(access_of_k(strides).copies[1]) << to_string(strides);
  }
  for (const std::uintptr_t shift : {2, 4, 8, 14}) {
    EXPECT_TRUE(access_of_k({25600, 3200, 64, 1}, 4096 + shift).copies[1]) << shift;
  }
}

// Row after row, rows at multiples of 16 bytes, tensors at multiples of 64.
TEST(TensorAccess, CopiesStandOneBehindTheOther) {
  HopperCall odd = {.batch = 3, .q_heads = 2, .kv_heads = 1, .q_rows = 5, .kv_rows = 7, .dim = 65, .v_dim = 33};
  const std::vector<TensorAccess> accesses = plan::tensor_accesses(odd.tensors(), odd.problem()).ways;
  ASSERT_EQ(accesses.size(), 1);
  const plan::TensorCopies& copies = accesses.front().copies;
  ASSERT_TRUE(copies[0] && copies[1] && copies[2] && !copies[plan::kCopiedCapture]);
  EXPECT_THAT(copies[0]->shape, Dims({3, 2, 5, 65}));
  EXPECT_EQ(copies[0]->row_bytes, 144);
  EXPECT_EQ(copies[0]->offset, 0);
  EXPECT_EQ(copies[1]->offset, 4352);  // 30 rows of 144, and 32 more
  EXPECT_EQ(copies[1]->row_bytes, 144);
  EXPECT_EQ(copies[2]->offset, 4352 + 3072);  // 21 rows
  EXPECT_EQ(copies[2]->row_bytes, 80);
  EXPECT_EQ(plan::room_of(accesses.front().copies), 4352 + 3072 + 1728);
  const char* workspace = reinterpret_cast<const char*>(std::uintptr_t{4096});
  const ConstTensorView view = plan::copy_of(*copies[2], DType::bf16, workspace);
  EXPECT_EQ(view.data, workspace + 4352 + 3072);
  EXPECT_THAT(view.shape, Dims({3, 1, 7, 33}));
  EXPECT_THAT(view.strides, Dims({280, 280, 40, 1}));
}

TEST(TensorAccess, SaysWhichAndWhy) {
  AttentionTensors given = tensors();
  given.q.data = reinterpret_cast<const void*>(std::uintptr_t{4098});
  given.v.strides = {6400, 3200, -64, 1};
  given.o.strides = {25700, 6425, 66, 1};
  const TensorAccess found = access(given);
  EXPECT_TRUE(found.copies[0] && !found.copies[1] && found.copies[2]);
  EXPECT_TRUE(found.odd_o);
  EXPECT_THAT(
      found.reasons,
      ElementsAre("o is stored by threads, 2 bytes at a time: its strides are [25700, 6425, 66, 1], and TMA "
                  "takes multiples of 8 elements, from 0 on and below 549755813888; its strides are [25700, 6425, 66, "
                  "1], and pairs of elements take multiples of 2",
                  "q is copied into the workspace by each run: its address is no multiple of 16, as TMA takes",
                  "v is copied into the workspace by each run: its strides are [6400, 3200, -64, 1], and TMA takes "
                  "multiples of 8 elements, from 0 on and below 549755813888"));
}

/// Pages of k and v, [5, 2, page_rows, 64], of which each of two sequences has 50 rows.
struct Paged {
  problem::AttentionProblem problem = call().problem();
  AttentionTensors given = tensors();
  explicit Paged(std::int64_t page_rows) {
    problem.page_rows = page_rows;
    given.k = ConstTensorView(nullptr, DType::bf16, Dims{5, 2, page_rows, 64});
    given.v = given.k;
  }
  plan::TensorAccesses all() const { return plan::tensor_accesses(given, problem); }
  std::vector<TensorAccess> accesses() const { return all().ways; }
};

// TMA brings pages of 8 rows, or multiples; other pages are gathered row by row.
TEST(TensorAccess, PagesAreReadWhereTheyLieOrCopied) {
  for (const std::int64_t rows : {1, 3, 12, 8, 16, 24, 128}) {
    const std::vector<TensorAccess> accesses = Paged(rows).accesses();
    ASSERT_EQ(accesses.size(), 2);
    EXPECT_EQ(accesses[0].page_rows, rows);
    EXPECT_EQ(plan::room_of(accesses[0].copies), 0);
    if (rows % 8 == 0) {
      EXPECT_THAT(accesses[0].reasons, IsEmpty());
    } else {
      EXPECT_THAT(
          accesses[0].reasons,
          ElementsAre(fmt::format("the rows of k and v are gathered by threads, 16 bytes at a time, from their pages: "
                                  "they have {} rows, and TMA takes multiples of 8",
                                  rows)));
    }
    EXPECT_EQ(accesses[1].page_rows, 0);
    EXPECT_THAT(accesses[1].reasons,
                ElementsAre(fmt::format("the pages of k and v are copied into the workspace by each run, sequence by "
                                        "sequence: they have {} rows, and a block of keys would come in many parts",
                                        rows)));
    EXPECT_FALSE(accesses[1].copies[0]);
    for (const int tensor : {1, 2}) {
      const plan::TensorCopy& copy = *accesses[1].copies[tensor];
      EXPECT_TRUE(copy.paged);
      EXPECT_THAT(copy.shape, Dims({2, 2, 50, 64}));
      EXPECT_EQ(copy.offset, tensor == 1 ? 0 : 25600);
    }
  }
}

// Either one tensor's pages are copied and stay pages, or the sequences of both tensors are copied.
TEST(TensorAccess, PagesAtOddPlacesAreCopied) {
  for (const std::int64_t rows : {1, 16}) {
    Paged paged(rows);
    paged.given.v.strides[1] += 4;
    const std::vector<TensorAccess> accesses = paged.accesses();
    ASSERT_EQ(accesses.size(), 2);
    EXPECT_EQ(accesses[0].page_rows, rows);
    EXPECT_FALSE(accesses[0].copies[1]);
    ASSERT_TRUE(accesses[0].copies[2]);
    EXPECT_FALSE(accesses[0].copies[2]->paged);
    EXPECT_THAT(accesses[0].copies[2]->shape, Dims({5, 2, rows, 64}));
    EXPECT_EQ(accesses[0].reasons.size(), rows == 1 ? 2 : 1);
    EXPECT_EQ(accesses[0].reasons[0],
              fmt::format("all pages of v are copied into the workspace by each run: its strides are [{}, {}, 64, 1], "
                          "and TMA takes multiples of 8 elements, from 0 on and below 549755813888",
                          128 * rows, 64 * rows + 4));
    EXPECT_EQ(accesses[1].page_rows, 0);
    EXPECT_TRUE(accesses[1].copies[1]->paged && accesses[1].copies[2]->paged);
  }
}

// An axis that all share is copied once.
TEST(TensorAccess, CopiesShareWhatTensorsShare) {
  const TensorAccess found = access_of_k({0, 0, 65, 1});
  ASSERT_TRUE(found.copies[1]);
  EXPECT_EQ(found.copies[1]->bytes(), 50 * 128);
  const ConstTensorView view = plan::copy_of(*found.copies[1], DType::bf16, nullptr);
  EXPECT_THAT(view.shape, Dims({2, 2, 50, 64}));
  EXPECT_THAT(view.strides, Dims({0, 0, 64, 1}));
  const ConstTensorView heads = plan::copy_of(*access_of_k({6400, 0, 65, 1}).copies[1], DType::bf16, nullptr);
  EXPECT_THAT(heads.strides, Dims({3200, 0, 64, 1}));
  const plan::TensorCopy rows = *access_of_k({130, 65, 0, 1}).copies[1];
  EXPECT_EQ(rows.bytes(), 4 * 128);
  EXPECT_THAT(plan::copy_of(rows, DType::bf16, nullptr).strides, Dims({128, 64, 0, 1}));
}

TEST(TensorAccess, CopiesOfPagesHaveALimit) {
  const Paged paged(3);
  const ScopedVariable exactly("HEDDLE_COPY_BYTES", "51200");
  EXPECT_EQ(paged.accesses().size(), 2);
  EXPECT_THAT(paged.all().rejected, IsEmpty());
  const ScopedVariable less("HEDDLE_COPY_BYTES", "51199");
  for (const std::int64_t rows : {3, 16}) {
    const plan::TensorAccesses accesses = Paged(rows).all();
    ASSERT_EQ(accesses.ways.size(), 1);
    EXPECT_EQ(accesses.ways[0].page_rows, rows);
    EXPECT_THAT(accesses.rejected,
                ElementsAre("copies of pages, sequence by sequence, would take 51200 bytes; up to 51199 are taken "
                            "(HEDDLE_COPY_BYTES)"));
  }
  // Pages that must be copied.
  Paged odd(3);  // all five pages: 5 * 2 * 3 rows of 128 bytes, aligned to 64
  odd.given.k.strides[2] = odd.given.v.strides[2] = 66;
  ASSERT_EQ(odd.accesses().size(), 2);
  EXPECT_EQ(odd.accesses()[0].page_rows, 3);
  EXPECT_EQ(plan::room_of(odd.accesses()[0].copies), 2 * 30 * 128);
  ASSERT_EQ(odd.accesses().size(), 2);
  EXPECT_EQ(odd.accesses()[1].page_rows, 0);
  EXPECT_EQ(plan::room_of(odd.accesses()[1].copies), 51200);
}

// TMA writes 16 bytes of a row, and no less: of an o of q's type, whatever its strides.
TEST(TensorAccess, OutputsWhoseRowsEndInsideOf16Bytes) {
  AttentionTensors given = tensors();
  EXPECT_EQ(access(given).o_type, shared::StorageType::same);
  for (const std::int64_t columns : {60, 57}) {
    given.o = TensorView(nullptr, DType::bf16, {2, 4, 100, columns}, {25600, 6400, 64, 1});
    const TensorAccess found = access(given);
    EXPECT_EQ(found.o_type, shared::StorageType::bf16);
    EXPECT_FALSE(found.odd_o);
    EXPECT_THAT(found.reasons, ElementsAre(fmt::format("o is stored by threads, 4 bytes at a time: its rows have {} "
                                                       "elements, and TMA stores multiples of 8",
                                                       columns)));
  }
}

// Threads store it: two elements at a time where these divide its strides and its address.
TEST(TensorAccess, OutputsOfOtherTypesAsk) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::e4m3}) {
    const std::int64_t bytes = size_of(dtype);
    const auto access_of_o = [&](const Dims& strides, std::int64_t address) {
      AttentionTensors given = tensors();
      given.o.dtype = dtype;
      given.o.strides = strides;
      given.o.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
      return access(given);
    };
    for (const Dims& strides :
         {Dims{60000, 12000, 66, 1}, Dims{60000, 12000, -66, 1}, Dims{std::int64_t{1} << 41, 2, 8, 1}}) {
      const TensorAccess found = access_of_o(strides, 4096 + 2 * bytes);
      EXPECT_FALSE(found.odd_o) << name(dtype) << to_string(strides);
      EXPECT_THAT(found.reasons, IsEmpty());
    }
    const TensorAccess strides = access_of_o({60000, 12000, 65, 1}, 4096);
    EXPECT_TRUE(strides.odd_o) << name(dtype);
    EXPECT_THAT(strides.reasons,
                ElementsAre(fmt::format("o is stored by threads, {} bytes at a time: its strides are [60000, 12000, "
                                        "65, 1], and pairs of elements take multiples of 2",
                                        bytes)));
    const TensorAccess address = access_of_o({60000, 12000, 66, 1}, 4096 + bytes);
    EXPECT_TRUE(address.odd_o) << name(dtype);
    EXPECT_THAT(address.reasons,
                ElementsAre(fmt::format("o is stored by threads, {} bytes at a time: its address is no multiple of {}, "
                                        "as pairs of elements take",
                                        bytes, 2 * bytes)));
  }
}

TEST(TensorAccess, StridesThatSayNothing) {
  const HopperCall one = {.q_rows = 1, .kv_rows = 50, .dim = 64};  // batch, heads and queries 1
  AttentionTensors given = one.tensors();
  given.q.strides = given.o.strides = {-1, 0, 7, 1};
  EXPECT_THAT(access(given).reasons, IsEmpty());
  given = HopperCall{.batch = 2, .kv_rows = 0}.tensors();  // no keys
  given.k.strides = given.v.strides = {0, 1, 3, 1};
  EXPECT_THAT(access(given).reasons, IsEmpty());
}

// In 8 bits: elements of a byte, and an o of bf16.
TEST(TensorAccess, EightBits) {
  AttentionTensors given =
      HopperCall{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 100, .kv_rows = 50, .dim = 64, .dtype = DType::e4m3}
          .tensors();
  EXPECT_THAT(access(given).reasons, IsEmpty());
  const auto copied = [&](const Dims& strides, std::uintptr_t address = 0) {
    AttentionTensors own = given;
    own.v.strides = strides;
    own.v.data = reinterpret_cast<const void*>(address);
    return access(own).copies[2].has_value();
  };
  EXPECT_FALSE(copied({6400, 3200, 80, 1}, 4096 + 16));
  EXPECT_FALSE(copied({2 * kEnd - 16, 3200, 64, 1}));
  EXPECT_TRUE(copied({2 * kEnd, 3200, 64, 1}));
  EXPECT_TRUE(copied({6400, 3200, 72, 1}));
  EXPECT_TRUE(copied({6400, 3200, 64, 1}, 4096 + 3));
  given.o.strides[2] = 68;
  EXPECT_THAT(access(given).reasons,
              ElementsAre("o is stored by threads, 4 bytes at a time: its strides are [25600, 6400, 68, 1], and TMA "
                          "takes multiples of 8 elements, from 0 on and below 549755813888"));
  given.o = TensorView(nullptr, DType::e4m3, given.o.shape, given.o.strides);
  EXPECT_THAT(access(given).reasons, IsEmpty());  // pairs
}

/// The planner's choices for these tensors.
std::vector<plan::Choice> choices_of(const HopperCall& call, const AttentionTensors& given,
                                     std::int64_t page_rows = 0) {
  problem::AttentionProblem problem = call.problem();
  problem.page_rows = page_rows;
  return plan::forward_sm90(problem, given, call.all_options(), h200(),
                            [&](BlockSize block) { return call.rows_of(block); });
}

// One of the two warps that transpose values goes on transposing, the other brings pages.
TEST(TensorAccess, EightBitsLeaveOneWarpToPages) {
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
TEST(TensorAccess, LeavesRoomForStreamedTiles) {
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
TEST(TensorAccess, CopiesArePartOfThePlan) {
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
TEST(TensorAccess, PagesOfTmaAreCopiedWhereTheirBoxesBind) {
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
TEST(TensorAccess, CopiesTakeTheTimeOfTheirRows) {
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
TEST(TensorAccess, CapturesAreCopiedWhereThatPays) {
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
TEST(TensorAccess, PagesAreCopiedWhereThatPays) {
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
