// Shapes of score matrices: packed batches from cumulative lengths, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "expect_error.h"
#include "heddle/block_mask.h"

namespace heddle {
namespace {

constexpr std::int64_t kMost = 2147483647;

template <class T>
ConstTensorView view_of(const std::vector<T>& values, std::int64_t stride = 1) {
  return {values.data(), sizeof(T) == 4 ? DType::i32 : DType::i64, Dims{std::ssize(values) / stride}, Dims{stride}};
}

TEST(MaskShape, UniformSequencesAreEqual) {
  const MaskShape shape = MaskShape::uniform(3, 2, 10, 20);
  EXPECT_EQ(shape.heads, 2);
  EXPECT_EQ(shape.sequences, std::vector<Sequence>(3, Sequence{.q_len = 10, .kv_len = 20}));
}

TEST(MaskShape, PackedSequencesStandWhereTheCumulativeLengthsSay) {
  const std::vector<std::int32_t> q{0, 3, 3, 10};
  const std::vector<std::int64_t> kv{0, -1, 5, -1, 9, -1, 9, -1};  // every second element
  const MaskShape shape = MaskShape::packed(4, view_of(q), view_of(kv, 2));
  EXPECT_EQ(shape.heads, 4);
  const std::vector<Sequence> expected{{.q_begin = 0, .q_len = 3, .kv_begin = 0, .kv_len = 5},
                                       {.q_begin = 3, .q_len = 0, .kv_begin = 5, .kv_len = 4},
                                       {.q_begin = 3, .q_len = 7, .kv_begin = 9, .kv_len = 0}};
  EXPECT_EQ(shape.sequences, expected);
  EXPECT_TRUE(MaskShape::packed(1, view_of(std::vector{0}), view_of(std::vector{0})).sequences.empty());
}

TEST(MaskShape, RefusesWrongCumulativeLengths) {
  const std::vector<std::int32_t> good{0, 3, 10}, from_one{1, 3, 10}, decreasing{0, 5, 4}, short_one{0, 3}, none{};
  const std::vector<float> reals{0, 3, 10};
  const auto refuses = [&](const ConstTensorView& q, const ConstTensorView& kv, const char* sentence) {
    expect_error([&] { MaskShape::packed(1, q, kv); }, ErrorCode::invalid_argument, std::string(sentence));
  };
  refuses(view_of(from_one), view_of(good), "cu_seqlens_q[0] is 1; it must be 0");
  refuses(view_of(good), view_of(decreasing),
          "cu_seqlens_kv decreases from 5 to 4 at index 2; cumulative lengths never decrease");
  refuses(view_of(good), view_of(short_one),
          "cu_seqlens_q has 3 elements and cu_seqlens_kv 2; both have one more than there are sequences");
  refuses(view_of(none), view_of(none), "cu_seqlens_q is [0]; one dimension of N + 1 cumulative lengths is accepted");
  refuses({reals.data(), DType::f32, Dims{3}}, view_of(good), "cu_seqlens_q is f32; i32 or i64 is accepted");
  refuses({good.data(), DType::i32, Dims{3, 1}}, view_of(good),
          "cu_seqlens_q is [3, 1]; one dimension of N + 1 cumulative lengths is accepted");
  refuses(view_of(good), {good.data(), DType::i32, Dims{3}, Device{DeviceKind::cuda, 0}},
          "cu_seqlens_kv is not on the CPU, where it is read");
  const std::vector<std::int64_t> far{0, kMost + 1};
  refuses(view_of(far), view_of(short_one),
          "sequence 0 has 2147483648 queries from 0; positions up to 2147483647 fit i32, in which masks see them");
}

TEST(MaskShape, TakesTheLastPositionThatFitsI32) {
  MaskShape shape = MaskShape::uniform(1, 1, 3, 5);
  shape.sequences[0].q_start = kMost - 2;
  const Expr mask = leaf::q_idx() - (kMost - 2) >= leaf::kv_idx() - 1;
  EXPECT_EQ(BlockMask::build(mask, shape, {1, 1}).text(), "##...\n###..\n####.\n");
  EXPECT_EQ(BlockMask::build(mask, shape, {2, 2}).text(), "#+.\n##.\n");
}

TEST(MaskShape, TakesTheLastKeyThatFitsI32) {
  MaskShape shape = MaskShape::uniform(1, 1, 3, 5);
  shape.sequences[0].kv_start = kMost - 4;
  const Expr mask = leaf::q_idx() + 1 >= leaf::kv_idx() - (kMost - 4);
  EXPECT_EQ(BlockMask::build(mask, shape, {1, 1}).text(), "##...\n###..\n####.\n");
  EXPECT_EQ(BlockMask::build(mask, shape, {2, 2}).text(), "#+.\n##.\n");
}

TEST(MaskShape, RefusesWhatWouldTakeAllMemory) {
  // With a head's rows shared by all, any number of heads costs nothing.
  EXPECT_EQ(BlockMask::build(leaf::kv_idx() > 0, MaskShape::uniform(1, kMost, 8, 8), {4, 4}).statistics().runs, 2);
  expect_error(
      [] {
        BlockMask::build(leaf::h() > 0, MaskShape::uniform(1, kMost, 8, 8), {4, 4});
      },
      ErrorCode::out_of_memory,
      "2147483647 heads with 2 rows of blocks each, each head with rows of its own, are too many; up to "
      "268435456 rows are accepted in all");
  expect_error([] { MaskShape::uniform(std::int64_t{1} << 40, 1, 8, 8); }, ErrorCode::invalid_argument,
               "batch is 1099511627776; 0 to 16777216 are accepted");
}

// Views without strides have any number of elements and no memory: a count is checked before anything is read or
// listed.
TEST(MaskShape, RefusesCountsBeforeTheyAreListed) {
  const std::int32_t zero = 0;
  const ConstTensorView many(&zero, DType::i32, Dims{std::int64_t{1} << 40}, Dims{0});
  expect_error([&] { MaskShape::packed(1, many, many); }, ErrorCode::invalid_argument,
               "cu_seqlens_q has 1099511627775 sequences; up to 16777216 are accepted");
  expect_error([] { MaskShape::uniform(MaskShape::kMostSequences + 1, 1, 8, 8); }, ErrorCode::invalid_argument,
               "batch is 16777217; 0 to 16777216 are accepted");
  const BlockMask wide = BlockMask::build(leaf::q_idx() >= leaf::kv_idx(), MaskShape::uniform(1, 1, 8, kMost), {1, 1});
  expect_error([&] { wide.transposed(); }, ErrorCode::out_of_memory,
               "1 heads with 2147483647 rows of blocks each, each head with rows of its own, are too many; up to "
               "268435456 rows are accepted in all");
}

TEST(MaskShape, RefusesNumbersOfThreads) {
  for (const int threads : {-3, 2147483647}) {
    expect_error(
        [&] {
          BlockMask::build(leaf::h() > 0, MaskShape::uniform(1, 1, 8, 8), {4, 4}, {}, threads);
        },
        ErrorCode::invalid_argument,
        "threads is " + std::to_string(threads) + "; 0 to 65536 are accepted, 0 for all cores");
  }
}

TEST(MaskShape, RefusesMemoryThatCannotBeRead) {
  const std::vector<std::int32_t> good{0, 3, 10};
  expect_error([&] { MaskShape::packed(1, view_of(good), ConstTensorView(nullptr, DType::i32, Dims{3})); },
               ErrorCode::invalid_argument, std::string("cu_seqlens_kv is i32 [3] but its data is null"));
  const ConstTensorView far(good.data(), DType::i32, Dims{3}, Dims{std::int64_t{1} << 60});
  expect_error([&] { MaskShape::packed(1, far, view_of(good)); }, ErrorCode::out_of_memory,
               testing::HasSubstr("cu_seqlens_q of shape [3] and strides [1152921504606846976] spans"));
  const Bindings lost = {.captures = {{"x", ConstTensorView(nullptr, DType::i32, Dims{8})}}, .params = {}};
  expect_error(
      [&] {
        BlockMask::build(Capture("x", DType::i32, 1)(leaf::q_idx()) > 0, MaskShape::uniform(1, 1, 8, 8), {4, 4}, lost);
      },
      ErrorCode::invalid_argument, std::string("capture 'x' was given a null pointer"));
}

TEST(MaskShape, RefusesWhatDoesNotFitI32) {
  const auto refuses = [](const MaskShape& shape, const char* sentence) {
    expect_error(
        [&] {
          BlockMask::build(true, shape, {128, 128});
        },
        ErrorCode::invalid_argument, std::string(sentence));
  };
  MaskShape shape = MaskShape::uniform(2, 1, 8, 8);
  shape.sequences[1].q_start = kMost - 6;
  refuses(shape,
          "sequence 1 has 8 queries and q_start 2147483641; positions up to 2147483647 fit i32, in which masks see "
          "them");
  shape.sequences[1] = {.q_len = 8, .kv_len = 8, .kv_start = kMost - 6};
  refuses(shape,
          "sequence 1 has 8 keys and kv_start 2147483641; positions up to 2147483647 fit i32, in which masks see them");
  shape.sequences[1] = {.q_len = 8, .kv_begin = kMost - 3, .kv_len = 4};
  refuses(shape, "sequence 1 has 4 keys from 2147483644; positions up to 2147483647 fit i32, in which masks see them");
  shape.sequences[1] = {.q_len = 8, .kv_len = -1};
  refuses(shape, "sequence 1 has -1 keys from 0; neither may be negative");
  shape.sequences[1] = {};
  shape.heads = -2;
  refuses(shape, "heads is -2; 0 to 2147483647 are accepted, since masks count in i32");

  // Just inside: the longest sequence, in blocks of one element along its side.
  EXPECT_EQ(BlockMask::build(true, MaskShape::uniform(1, 1, 1, kMost), {1, 1}).row(0, 0, 0).size(), 1U);
  expect_error([] { MaskShape::uniform(-1, 1, 8, 8); }, ErrorCode::invalid_argument,
               std::string("batch is -1; 0 to 16777216 are accepted"));
  expect_error([] { MaskShape::uniform(1, 1, kMost + 1, 8); }, ErrorCode::invalid_argument,
               testing::HasSubstr("positions up to 2147483647 fit i32"));
  expect_error(
      [] {
        BlockMask::build(true, MaskShape::uniform(1, 1, 8, 8), {0, 4});
      },
      ErrorCode::invalid_argument, std::string("block is 0 x 4; sizes of at least 1 are accepted"));
}

TEST(BlockMask, RefusesMasksThatAreNoMasks) {
  const MaskShape shape = MaskShape::uniform(1, 1, 8, 8);
  const auto refuses = [&](const Expr& mask, const Bindings& bindings, const testing::Matcher<std::string>& sentence) {
    expect_error([&] { BlockMask::build(mask, shape, {4, 4}, bindings); }, ErrorCode::invalid_argument, sentence);
  };
  refuses(leaf::q_idx() - leaf::kv_idx(), {}, testing::HasSubstr("must be bool"));
  refuses(leaf::score() > 0.0, {}, testing::HasSubstr("score"));
  refuses(leaf::kv_idx() < param("window", ExprType::i32), {}, testing::HasSubstr("window"));
  const Capture doc("doc", DType::i32, 1);
  refuses(doc(leaf::q_idx()) == doc(leaf::kv_idx()), {}, testing::HasSubstr("doc"));

  const std::vector<std::int32_t> ids(7);
  Bindings bindings;
  bindings.captures["doc"] = view_of(ids);
  refuses(doc(leaf::q_idx()) == 0, bindings, testing::HasSubstr("doc"));
  EXPECT_NO_THROW(BlockMask::build(doc(min(leaf::q_idx(), 6)) == 0, shape, {4, 4}, bindings));
  bindings.captures["doc"].device = {DeviceKind::cuda, 0};
  expect_error(
      [&] {
        BlockMask::build(doc(min(leaf::q_idx(), 6)) == 0, shape, {4, 4}, bindings);
      },
      ErrorCode::unsupported,
      std::string("the mask reads capture 'doc', which is not on the CPU; block masks are built there"));
  expect_error(
      [&] {
        BlockMask::build(true, shape, {4, 4}, {}, 1, DType::bf16);
      },
      ErrorCode::invalid_argument, std::string("reals is bf16; a mask computes in f32 or f64"));
}

TEST(BlockMask, RefusesRowsThatAreNotThere) {
  const BlockMask mask = BlockMask::build(true, MaskShape::uniform(2, 3, 8, 8), {4, 4});
  const auto refuses = [&](std::int64_t sequence, std::int64_t head, std::int64_t row) {
    expect_error([&] { mask.row(sequence, head, row); }, ErrorCode::invalid_argument,
                 testing::HasSubstr("covers 2 sequences and 3 heads"));
  };
  refuses(2, 0, 0);
  refuses(-1, 0, 0);
  refuses(0, 3, 0);
  refuses(0, 0, 2);
  refuses(0, 0, -1);
  expect_error([&] { mask.q_blocks(2); }, ErrorCode::invalid_argument,
               std::string("the block mask has no sequence 2; it covers 2"));
}

}  // namespace
}  // namespace heddle
