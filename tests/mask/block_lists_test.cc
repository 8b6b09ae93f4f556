// Block masks from and to lists of blocks, and the lists that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "expect_error.h"
#include "heddle/block_mask.h"
#include "mask/dense.h"
#include "mask/random_mask.h"

namespace heddle::test {
namespace {

Tensor tensor(const Dims& shape, const std::vector<std::int32_t>& values) {
  Tensor result = Tensor::zeros(DType::i32, shape);
  EXPECT_EQ(result.count(), std::ssize(values));
  std::ranges::copy(values, static_cast<std::int32_t*>(result.data()));
  return result;
}

const MaskShape kShape = MaskShape::uniform(1, 1, 6, 10);  // 2 x 4 blocks of 4 x 3
constexpr BlockSize kBlock{4, 3};
const Expr kMask = leaf::kv_idx() <= leaf::q_idx();

BlockLists lists() {
  return {tensor({1, 1, 2}, {1, 2}), tensor({1, 1, 2, 4}, {3, 0, 0, 0, 2, 0, 9, 9}), tensor({1, 1, 2}, {2, 1}),
          tensor({1, 1, 2, 2}, {1, 0, 1, 7})};
}

TEST(BlockLists, RowsAreWhatTheListsSay) {
  const BlockMask mask = BlockMask::from_lists(lists(), kShape, kBlock, kMask);
  EXPECT_EQ(run_classes(mask, 0, 0), "##.+\n+#+.\n");
  EXPECT_TRUE(mask.is_from_lists());
  EXPECT_TRUE(same(mask.mask(), kMask));
  EXPECT_NO_THROW(mask.check_current({}));
  EXPECT_EQ(run_classes(mask.transposed(), 0, 0), "#+\n##\n.+\n+.\n");
}

TEST(BlockLists, PartialCountsAsFullWithoutAMask) {
  const BlockMask mask = BlockMask::from_lists(lists(), kShape, kBlock);
  EXPECT_EQ(run_classes(mask, 0, 0), "##.#\n###.\n");
  EXPECT_EQ(mask.statistics().runs, 3);
}

TEST(BlockLists, TheFullOnesMayBeAbsent) {
  BlockLists partial_only{lists().kv_num_blocks, lists().kv_indices, {}, {}};
  EXPECT_EQ(run_classes(BlockMask::from_lists(partial_only, kShape, kBlock, kMask), 0, 0), "...+\n+.+.\n");
}

TEST(BlockLists, UpdateLeavesThemAlone) {
  BlockMask mask = BlockMask::from_lists(lists(), kShape, kBlock, kMask & param("on", ExprType::boolean));
  const BlockMask before = mask;
  mask.update({});
  EXPECT_EQ(mask, before);
}

TEST(BlockLists, BatchAndHeadsMayBeShared) {
  MaskShape shape = MaskShape::uniform(3, 2, 6, 10);
  shape.sequences[1].kv_len = 5;  // two blocks of keys
  shape.sequences[2].q_len = 3;   // one block of queries
  const BlockMask mask = BlockMask::from_lists(lists(), shape, kBlock, kMask);
  EXPECT_TRUE(mask.shared_by_batch());
  EXPECT_TRUE(mask.shared_by_heads());
  for (std::int64_t h = 0; h < 2; ++h) {
    EXPECT_EQ(run_classes(mask, 0, h), "##.+\n+#+.\n");
    EXPECT_EQ(run_classes(mask, 1, h), "##\n+#\n");
    EXPECT_EQ(run_classes(mask, 2, h), "##.+\n");
  }
  const BlockLists two_heads{tensor({1, 2, 2}, {1, 0, 0, 1}), tensor({1, 2, 2, 1}, {3, 0, 0, 2}), {}, {}};
  const BlockMask by_head = BlockMask::from_lists(two_heads, MaskShape::uniform(2, 2, 6, 10), kBlock, kMask);
  EXPECT_FALSE(by_head.shared_by_heads());
  for (std::int64_t b = 0; b < 2; ++b) {
    EXPECT_EQ(run_classes(by_head, b, 0), "...+\n....\n");
    EXPECT_EQ(run_classes(by_head, b, 1), "....\n..+.\n");
  }
}

TEST(BlockLists, StridedTensorsAreRead) {
  const Tensor wide = tensor({1, 1, 2, 2}, {1, 5, 2, 5});
  BlockLists strided = lists();
  TensorView counts = wide.view();
  counts.shape = Dims{1, 1, 2};
  counts.strides = Dims{4, 4, 2};
  strided.kv_num_blocks = Tensor::adopt(counts, std::make_shared<Tensor>(wide));
  EXPECT_EQ(BlockMask::from_lists(strided, kShape, kBlock, kMask),
            BlockMask::from_lists(lists(), kShape, kBlock, kMask));
}

TEST(BlockLists, ThereAndBack) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomMasks random(seed);
    const Expr mask = random.draw();
    MaskShape shape = random.shape();
    for (Sequence& sequence : shape.sequences) {
      sequence.q_len = shape.sequences[0].q_len;
      sequence.kv_len = shape.sequences[0].kv_len;
    }
    const BlockMask built = BlockMask::build(mask, shape, {5, 3}, random.bindings());
    const BlockLists listed = built.to_lists();
    EXPECT_EQ(BlockMask::from_lists(listed, shape, {5, 3}, mask), built) << print(mask);
    EXPECT_EQ(listed.kv_indices.shape()[1], built.shared_by_heads() ? 1 : shape.heads);
    compared += built.statistics().partial > 0 ? 1 : 0;
  }
  EXPECT_GT(compared, 100);
}

TEST(BlockLists, EntriesStandInOrderAndRestIsZero) {
  const BlockLists listed = BlockMask::build(kMask, MaskShape::uniform(2, 2, 6, 10), {2, 3}).to_lists();
  EXPECT_EQ(listed.kv_num_blocks.shape(), (Dims{1, 1, 3}));
  EXPECT_EQ(listed.full_kv_indices.shape(), (Dims{1, 1, 3, 4}));
  const auto values = [](const Tensor& x) {
    const auto* data = static_cast<const std::int32_t*>(x.data());
    return std::vector<std::int32_t>(data, data + x.count());
  };
  EXPECT_THAT(values(listed.kv_num_blocks), testing::ElementsAre(1, 1, 1));
  EXPECT_THAT(values(listed.kv_indices), testing::ElementsAre(0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0));
  EXPECT_THAT(values(listed.full_kv_num_blocks), testing::ElementsAre(0, 1, 1));
  EXPECT_THAT(values(listed.full_kv_indices), testing::ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(BlockLists, SequencesOfDifferentLengthHaveNone) {
  MaskShape shape = MaskShape::uniform(2, 1, 6, 10);
  shape.sequences[1].kv_len = 9;
  const BlockMask mask = BlockMask::build(kMask, shape, kBlock);
  expect_error([&] { mask.to_lists(); }, ErrorCode::unsupported,
               std::string("lists of blocks need sequences of one length; this mask has 6 x 10 and 6 x 9"));
}

TEST(BlockLists, MemoryThatCannotBeReadIsRefused) {
  const auto refuses = [](Tensor BlockLists::*list, const std::function<void(TensorView&)>& spoil, ErrorCode code,
                          const char* sentence) {
    BlockLists wrong = lists();
    TensorView view = (wrong.*list).view();
    spoil(view);
    wrong.*list = Tensor::adopt(view, std::make_shared<Tensor>(wrong.*list));
    expect_error([&] { BlockMask::from_lists(wrong, kShape, kBlock, kMask); }, code, testing::HasSubstr(sentence));
  };
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  const auto null = [](TensorView& view) { view.data = nullptr; };
  refuses(&BlockLists::kv_num_blocks, null, kInvalid, "kv_num_blocks is i32 [1, 1, 2] but its data is null");
  refuses(&BlockLists::kv_indices, null, kInvalid, "kv_indices is i32 [1, 1, 2, 4] but its data is null");
  refuses(&BlockLists::full_kv_num_blocks, null, kInvalid, "full_kv_num_blocks is i32 [1, 1, 2] but its data is null");
  refuses(&BlockLists::full_kv_indices, null, kInvalid, "full_kv_indices is i32 [1, 1, 2, 2] but its data is null");
  refuses(
      &BlockLists::kv_indices, [](TensorView& view) { view.data = static_cast<std::byte*>(view.data) + 2; }, kInvalid,
      "kv_indices is i32 [1, 1, 2, 4] but its data is not aligned to 4 bytes");
  refuses(
      &BlockLists::kv_indices, [](TensorView& view) { view.strides[2] = std::int64_t{1} << 61; },
      ErrorCode::out_of_memory, "kv_indices of shape [1, 1, 2, 4] and strides [8, 8, 2305843009213693952, 1] spans");
  refuses(
      &BlockLists::kv_num_blocks,
      [](TensorView& view) {
        view.strides = Dims{1, 1};
      },
      kInvalid, "kv_num_blocks has shape [1, 1, 2] and strides [1, 1]; a stride an axis is accepted");
  refuses(
      &BlockLists::kv_num_blocks, [](TensorView& view) { view.shape[2] = -2; }, kInvalid,
      "kv_num_blocks has shape [1, 1, -2]; extents of at least 0 are accepted");
  refuses(
      &BlockLists::kv_num_blocks, [](TensorView& view) { view.device.index = 5; }, kInvalid,
      "kv_num_blocks has device index 5; of the CPU 0 is accepted");
}

TEST(BlockLists, MissingOnesAreNamed) {
  const auto refuses = [](Tensor BlockLists::*list, const char* sentence) {
    BlockLists wrong = lists();
    wrong.*list = {};
    expect_error([&] { BlockMask::from_lists(wrong, kShape, kBlock, kMask); }, ErrorCode::invalid_argument,
                 std::string(sentence));
  };
  refuses(&BlockLists::kv_num_blocks, "kv_num_blocks is not given; it is accepted together with kv_indices");
  refuses(&BlockLists::kv_indices, "kv_indices is not given; it is accepted together with kv_num_blocks");
  refuses(&BlockLists::full_kv_num_blocks,
          "full_kv_num_blocks is not given; it is accepted together with full_kv_indices");
  refuses(&BlockLists::full_kv_indices,
          "full_kv_indices is not given; it is accepted together with full_kv_num_blocks");
}

TEST(BlockLists, WrongOnesAreRefused) {
  const auto refuses = [](const BlockLists& wrong, const char* sentence) {
    expect_error([&] { BlockMask::from_lists(wrong, kShape, kBlock, kMask); }, ErrorCode::invalid_argument,
                 std::string(sentence));
  };
  BlockLists wrong = lists();
  wrong.kv_indices = tensor({1, 1, 2, 4}, {3, 0, 0, 0, 2, 4, 0, 0});
  refuses(wrong, "kv_indices[0, 0, 1, 1] is 4; there are 4 blocks of keys");
  wrong.kv_indices = tensor({1, 1, 2, 4}, {-1, 0, 0, 0, 2, 0, 0, 0});
  refuses(wrong, "kv_indices[0, 0, 0, 0] is -1; there are 4 blocks of keys");
  wrong.kv_indices = tensor({1, 1, 2, 4}, {3, 0, 0, 0, 2, 2, 0, 0});
  refuses(wrong, "row [0, 0, 1] of the lists has block 2 twice; each block may be listed once");
  wrong.kv_indices = tensor({1, 1, 2, 4}, {3, 0, 0, 0, 2, 1, 0, 0});
  refuses(wrong, "row [0, 0, 1] of the lists has block 1 both partial and full; each block may be listed once");

  wrong = lists();
  wrong.kv_num_blocks = tensor({1, 1, 2}, {-1, 2});
  refuses(wrong, "kv_num_blocks[0, 0, 0] is -1; 0 to 4, the last extent of kv_indices, is accepted");
  wrong.full_kv_num_blocks = tensor({1, 1, 2}, {3, 1});
  wrong.kv_num_blocks = lists().kv_num_blocks;
  refuses(wrong, "full_kv_num_blocks[0, 0, 0] is 3; 0 to 2, the last extent of full_kv_indices, is accepted");

  wrong = lists();
  wrong.kv_num_blocks = wrong.kv_num_blocks.to(DType::i64);
  refuses(wrong, "kv_num_blocks is i64; i32 is accepted");
  wrong = lists();
  wrong.kv_num_blocks = tensor({1, 1, 3}, {1, 2, 0});
  refuses(wrong, "kv_num_blocks is [1, 1, 3]; [B, H, Q] with B 1 or 1, H 1 or 1, Q 2 is accepted");
  wrong.kv_num_blocks = tensor({2}, {1, 2});
  refuses(wrong, "kv_num_blocks is [2]; [B, H, Q] with B 1 or 1, H 1 or 1, Q 2 is accepted");
  wrong.kv_num_blocks = tensor({1, 2, 2}, {1, 2, 1, 2});
  refuses(wrong, "kv_num_blocks is [1, 2, 2]; [B, H, Q] with B 1 or 1, H 1 or 1, Q 2 is accepted");
}

TEST(BlockLists, ExtentsOfThePairsMustAgree) {
  const MaskShape shape = MaskShape::uniform(2, 2, 6, 10);
  BlockLists wrong = lists();
  wrong.kv_num_blocks = tensor({1, 2, 2}, {0, 0, 0, 0});
  expect_error([&] { BlockMask::from_lists(wrong, shape, kBlock); }, ErrorCode::invalid_argument,
               std::string("kv_num_blocks is [1, 2, 2] and kv_indices [1, 1, 2, 4]; their first three extents must "
                           "agree"));
  wrong.kv_indices = tensor({1, 2, 2, 1}, {0, 0, 0, 0});
  expect_error([&] { BlockMask::from_lists(wrong, shape, kBlock); }, ErrorCode::invalid_argument,
               std::string("kv_num_blocks is [1, 2, 2] and full_kv_num_blocks [1, 1, 2]; B and H must agree"));
  expect_error(
      [&] {
        BlockMask::from_lists(lists(), kShape, {0, 3});
      },
      ErrorCode::invalid_argument, std::string("block is 0 x 3; sizes of at least 1 are accepted"));
  expect_error([&] { BlockMask::from_lists(lists(), kShape, kBlock, leaf::q_idx()); }, ErrorCode::invalid_argument,
               testing::HasSubstr("must be bool"));
}

}  // namespace
}  // namespace heddle::test
