// Block masks whose blocks no kernel of a GPU follows: those that say what their mask_mod says are built anew, and only
// the others are refused. On a GPU that need not be here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "heddle/backward.h"
#include "heddle/error.h"
#include "heddle/mods.h"

namespace heddle {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRows = 200;
const MaskShape kShape = {4, {{.q_len = kRows, .kv_len = kRows}}};

AttentionOptions options_with(BlockMask mask) {
  AttentionOptions options;
  options.block_mask = std::make_shared<const BlockMask>(std::move(mask));
  return options;
}

/// The forward's plan as text, or the sentence of an error.
std::string plan_of(const AttentionOptions& options, std::int64_t queries = kRows) {
  const Tensor q = Tensor::zeros(DType::bf16, {1, 4, queries, 64}), k = Tensor::zeros(DType::bf16, {1, 2, kRows, 64});
  const Tensor o = Tensor::zeros(DType::bf16, {1, 4, queries, 64});
  try {
    return explain_on("h200", AttentionTensors{.q = q, .k = k, .v = k, .o = o}, options).text;
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
}

std::string backward_plan_of(const AttentionOptions& options) {
  const Tensor q = Tensor::zeros(DType::bf16, {1, 4, kRows, 64}), k = Tensor::zeros(DType::bf16, {1, 2, kRows, 64});
  const Tensor lse = Tensor::zeros(DType::f32, {1, 4, kRows});
  const Tensor dq = Tensor::zeros(DType::bf16, {1, 4, kRows, 64});
  try {
    return explain_on("h200", BackwardTensors{.q = q, .k = k, .v = k, .o = q, .lse = lse, .d_o = q, .dq = dq}, options)
        .text;
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
}

BlockMask lists_of(const Expr& mask, BlockSize block, const Expr& said) {
  return BlockMask::from_lists(BlockMask::build(mask, kShape, block).to_lists(), kShape, block, said);
}
BlockMask lists_of(const Expr& mask, BlockSize block) { return lists_of(mask, block, mask); }

/// No family takes the mask. (A plan, too, names what other kernels refuse.)
const auto kIsRefused = testing::AllOf(testing::StartsWith("refused: "), HasSubstr("of a block of block_mask"));

TEST(CallersMask, BuiltMasksInAnyBlocksAreTaken) {
  for (const BlockSize block : {BlockSize{16, 16}, BlockSize{1, 100}, BlockSize{96, 64}, BlockSize{64, 24}}) {
    const AttentionOptions options = options_with(BlockMask::build(mods::causal(), kShape, block));
    EXPECT_THAT(plan_of(options), testing::AllOf(Not(HasSubstr("refused")), HasSubstr("blocks of 64 x"))) << block.q;
    EXPECT_THAT(backward_plan_of(options), Not(HasSubstr("refused"))) << block.q;
  }
}

TEST(CallersMask, ListsThatSayWhatTheirMaskSaysAreTaken) {
  for (const Expr& mask : {mods::causal(), mods::sliding_window(40), leaf::kv_idx() < leaf::h() * 40}) {
    for (const BlockSize block : {BlockSize{16, 16}, BlockSize{32, 128}, BlockSize{1, 100}}) {
      EXPECT_THAT(plan_of(options_with(lists_of(mask, block))), Not(HasSubstr("refused")))
          << print(mask) << " in blocks of " << block.q;
    }
  }
}

// Rows of one head serve all four, whoever follows them: kernels of the CPU, or of a GPU.
TEST(CallersMask, RowsOfOneHeadServeAll) {
  const MaskShape one = {1, kShape.sequences};
  const BlockMask whole = BlockMask::build(mods::causal(), kShape, {64, 64}),
                  built = BlockMask::build(mods::causal(), one, {64, 64});
  EXPECT_EQ(built.row(0, 3, 1).size(), whole.row(0, 3, 1).size());
  EXPECT_THROW(built.row(1, 0, 0), Error);
  EXPECT_THROW(BlockMask::build(leaf::kv_idx() >= leaf::h(), one, {64, 64}).row(0, 1, 0), Error);
  // Lists that leave out what their mask does not.
  const BlockLists lists = BlockMask::build(mods::sliding_window(40), one, {64, 64}).to_lists();
  const auto of_all = options_with(BlockMask::from_lists(lists, kShape, {64, 64}, mods::causal())),
             of_one = options_with(BlockMask::from_lists(lists, one, {64, 64}, mods::causal()));
  const auto behind_mask = [](const std::string& text) { return text.substr(text.find("\nplan ")); };
  EXPECT_EQ(behind_mask(plan_of(of_one)), behind_mask(plan_of(of_all)));
  EXPECT_EQ(behind_mask(backward_plan_of(of_one)), behind_mask(backward_plan_of(of_all)));
  const Tensor q = Tensor::zeros(DType::f32, {1, 4, kRows, 32}), k = Tensor::zeros(DType::f32, {1, 2, kRows, 32});
  const Tensor v = Tensor::zeros(DType::f32, {1, 2, kRows, 32});
  for (std::int64_t i = 0; i < v.count(); ++i) static_cast<float*>(v.data())[i] = static_cast<float>(i % 97);
  for (const auto& [all, own] : {std::pair(options_with(whole), options_with(built)), {of_all, of_one}}) {
    const Tensor wanted = attention(q, k, v, all).o, found = attention(q, k, v, own).o;
    EXPECT_EQ(std::memcmp(wanted.data(), found.data(), static_cast<std::size_t>(4 * wanted.count())), 0);
  }
}

TEST(CallersMask, ListsOfOneQueryThatHaveEverything) {
  const MaskShape shape = {4, {{.q_len = 1, .kv_len = kRows}}};
  const BlockMask all = BlockMask::build(leaf::kv_idx() >= 0, shape, {1, 128});
  EXPECT_THAT(plan_of(options_with(BlockMask::from_lists(all.to_lists(), shape, {1, 128})), 1),
              Not(HasSubstr("refused")));
}

// By tiles of as few rows, which the portable family has.
TEST(CallersMask, ListsInBlocksOf16And32RowsAreFollowed) {
  for (const BlockSize block : {BlockSize{16, 16}, BlockSize{32, 128}, BlockSize{48, 32}, BlockSize{96, 64}}) {
    const std::string plan = plan_of(options_with(lists_of(mods::sliding_window(20), block, mods::causal())));
    EXPECT_THAT(plan, testing::AllOf(Not(HasSubstr("refused: ")), HasSubstr("\nplan       forward_mma"))) << plan;
  }
}

TEST(CallersMask, ListsThatSayMoreAreFollowedOrRefused) {
  const BlockSize block = {8, 64};
  // Blocks are skipped that the mask has; blocks are filled that the mask does not fill.
  EXPECT_THAT(plan_of(options_with(lists_of(mods::sliding_window(20), block, mods::causal()))), kIsRefused);
  EXPECT_THAT(plan_of(options_with(lists_of(mods::causal(), block, mods::sliding_window(20)))), kIsRefused);
  EXPECT_THAT(plan_of(options_with(lists_of(mods::causal(), block, Expr()))), kIsRefused);
  // In the last head alone.
  EXPECT_THAT(plan_of(options_with(lists_of((leaf::kv_idx() < 64) | (leaf::h() < 3), block, leaf::kv_idx() >= 0))),
              kIsRefused);
  // In blocks that kernels take, lists are followed.
  EXPECT_THAT(plan_of(options_with(lists_of(mods::sliding_window(20), {64, 64}, mods::causal()))),
              Not(HasSubstr("refused")));
}

TEST(CallersMask, ListsWhoseMaskMayChangeAreFollowed) {
  const Expr window = leaf::q_idx() - leaf::kv_idx() < param("width", ExprType::i32);
  Bindings bindings;
  bindings.params["width"] = 20;
  const BlockSize block = {8, 64};
  const BlockMask built = BlockMask::build(window, kShape, block, bindings);
  AttentionOptions options = options_with(BlockMask::from_lists(built.to_lists(), kShape, block, window));
  options.bindings = bindings;
  EXPECT_THAT(plan_of(options), kIsRefused);
  options.block_mask = std::make_shared<const BlockMask>(built);
  EXPECT_THAT(plan_of(options), Not(HasSubstr("refused")));
  options.bindings.params["width"] = 30;
  EXPECT_THAT(plan_of(options), HasSubstr("update it first"));
}

}  // namespace
}  // namespace heddle
