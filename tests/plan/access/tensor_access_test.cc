// Which tensors TMA reaches, which are copied first, and what of pages is gathered.
#include "plan/access/tensor_access.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "plan/access/tensor_copies.h"
#include "plan/hopper.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using plan::TensorAccess;
using testing::ElementsAre;
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

}  // namespace
}  // namespace heddle::test
