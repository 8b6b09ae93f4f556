// Attention over ranks on the fake ROCm devices, a thread each: rows are packed, added and stored there.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/amd/launch/fake_device.h"
#include "context/whole_sequence.h"

namespace heddle::amd {
namespace {

class AmdContext : public FakeDeviceTest {
 protected:
  /// Two ranks, each on a device of its own.
  static test::Whole small(DType dtype) {
    test::Whole of;
    of.ranks = 2;
    of.dtype = dtype;
    of.q_len = of.kv_len = 24;
    of.dim = of.v_dim = 16;
    of.placing = Placing::zigzag;
    return of;
  }
};

TEST_F(AmdContext, EqualsOneRank) {
  test::Whole of = small(DType::bf16);
  of.score = mods::alibi(Capture("slopes", DType::f32, 1));
  of.times = 2;
  test::expect_right(of, DeviceKind::rocm, 2);
}

TEST_F(AmdContext, HeadGroupsHaveTheBitsOfOne) {
  test::Whole of = small(DType::bf16);
  of.heads = of.kv_heads = 2;
  of.score = mods::alibi(Capture("slopes", DType::f32, 1));
  of.head_groups = 1;
  const test::Gathered one = test::expect_right(of, DeviceKind::rocm, 2);
  of.head_groups = 2;
  const test::Gathered two = test::expect_right(of, DeviceKind::rocm, 2);
  for (const auto member : {&test::Gathered::o, &test::Gathered::dq, &test::Gathered::dk, &test::Gathered::dv}) {
    const Tensor &x = one.*member, &y = two.*member;
    EXPECT_EQ(std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.count() * size_of(x.dtype()))), 0);
  }
}

TEST_F(AmdContext, AddsToGradients) {
  test::Whole of = small(DType::f32);
  of.heads = of.kv_heads = 2;
  of.head_groups = 2;
  of.times = 2;
  of.added = {true, true, true};
  test::expect_right(of, DeviceKind::rocm, 2);
}

TEST_F(AmdContext, RowsCrossOnceToAHost) {
  test::Whole of = small(DType::f16);
  of.ranks = 4;
  of.ranks_per_host = 2;
  of.v_dim = 12;  // rows that no thread moves eight columns of at once
  test::expect_right(of, DeviceKind::rocm, 2);
}

TEST_F(AmdContext, RefusesTensorsOfAnotherDevice) {
  const test::Whole of = small(DType::bf16);
  const BlockMask blocks = of.block_mask();
  const MadePartition partition = of.partition(blocks);
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& threads) {
    test::OnDevice communicator(threads, {DeviceKind::rocm, 0});
    const ContextAttention context(partition, blocks, {}, communicator);
    const std::int64_t rows = partition.queries.rows(communicator.rank());
    const Tensor here = Tensor::zeros(DType::bf16, {1, 1, rows, 16});
    try {
      context.forward({here, here, here, here});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "q is on the CPU, and the communicator carries rows of rocm:0; tensors there are accepted");
    }
  });
  EXPECT_EQ(ranks.exchanges(), 0);
}

}  // namespace
}  // namespace heddle::amd
