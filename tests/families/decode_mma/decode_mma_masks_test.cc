// Few queries under masks: the keys that a mask bounds, blocks that are passed over, masks that are left to others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "expect_error.h"
#include "families/decode_mma/decode_mma_keys.h"
#include "families/decode_mma/decode_offers.h"
#include "heddle/mods.h"

namespace heddle::test::decode {
namespace {

using shared::ForwardMmaConfig;

// Within a mask's bounds all keys are read, so masks that leave few of those go to families that walk the mask's rows.
TEST(DecodeMma, LeavesSparseMasksToOthers) {
  HopperCall window = few(), dilated = few();
  window.mask = leaf::kv_idx() >= 7000;
  dilated.mask = leaf::kv_idx() >= 4096 && floor_div(leaf::kv_idx(), 128) % 4 == 0;
  EXPECT_FALSE(offered(window).empty());
  expect_error([&] { offered(dilated); }, ErrorCode::unsupported,
               "the mask leaves 12 % of the blocks of keys, and 50 % of the keys would be read; 80 % of what is read, "
               "and more, is accepted");
}

TEST(DecodeMma, MasksBoundTheKeysThatAreRead) {
  const auto keys_of = [](const HopperCall& call, const Bindings& bindings = {}) {
    const ForwardMmaConfig config = first_of(call);
    return plan::decode_mma_keys(call.problem(), plan::portable_mods(call.problem()), bindings, config);
  };
  HopperCall call = few();
  EXPECT_FALSE(first_of(call).bounded);
  EXPECT_EQ(keys_of(call).read, 2 * 8192);
  EXPECT_EQ(keys_of(call).units, 2 * 64);
  call.mask = leaf::kv_idx() >= 7000;
  EXPECT_TRUE(first_of(call).bounded);
  EXPECT_EQ(keys_of(call).read, 2 * 1192);
  EXPECT_EQ(keys_of(call).units, 2 * 10);
  EXPECT_EQ(keys_of(call).all, 2 * 8192);
  EXPECT_EQ(offered(call).front().plan.forms.mask, "computed for each pair; keys are read where kv_idx >= 7000");
  EXPECT_LT(offered(call).front().plan.predicted->bytes, offered(few()).front().plan.predicted->bytes / 6);
  // Two runs, of 4 keys and of 128.
  call.mask = leaf::kv_idx() < 4 || leaf::kv_idx() >= 8064;
  EXPECT_EQ(keys_of(call).read, 2 * 132);
  EXPECT_EQ(keys_of(call).units, 2 * 2);
  EXPECT_EQ(offered(call).front().plan.grid, 2 * 8);
  // Nothing is bounded.
  call.mask = leaf::kv_idx() % 128 != 7;
  EXPECT_FALSE(first_of(call).bounded);
  EXPECT_EQ(keys_of(call).read, 2 * 8192);
  EXPECT_EQ(offered(call).front().plan.forms.mask, "computed for each pair; it bounds no keys, so all are read");
  // A param counts if its value is given.
  call.mask = leaf::kv_idx() < param("keys", ExprType::i32);
  call.options.bindings.params["keys"] = 300;
  EXPECT_TRUE(first_of(call).bounded);
  EXPECT_EQ(keys_of(call, call.options.bindings).read, 2 * 300);
}

/// The plans where the device alone knows the lengths.
std::vector<plan::Choice> offered_there(const HopperCall& call, std::string_view gpu = "h200") {
  problem::AttentionProblem problem = call.problem();
  problem.device_lengths = true;
  return plan::decode_mma(problem, call.tensors(), call.all_options(), caps_of(gpu), [](BlockSize) { return nullptr; });
}

// Ids of keys and windows of each head bound no keys of a sequence: blocks are passed over instead, where no list of
// blocks is known. The same kernel that reads all stands behind.
TEST(DecodeMma, PassesOverBlocksWithoutAPair) {
  const auto of = [](const std::vector<plan::Choice>& choices, bool last = false) {
    return (last ? choices.back() : choices.front()).plan.part<ForwardMmaConfig>();
  };
  HopperCall call = few();
  std::vector<std::int32_t> ids(8192);
  call.options.bindings.captures["ids"] = ConstTensorView(ids.data(), DType::i32, Dims{8192});
  call.mask = mods::documents(Capture("ids", DType::i32, 1)) && mods::causal();
  EXPECT_EQ(of(offered_there(call)).tested_heads, 1);
  EXPECT_EQ(of(offered_there(call), true).tested_heads, 0);
  EXPECT_EQ(
      offered_there(call).front().plan.forms.mask,
      "computed for each pair; keys are read where q_idx >= kv_idx; blocks of 16 keys are read of which it leaves "
      "a pair");
  EXPECT_EQ(of(offered_there(call), true).bounded, true);
  EXPECT_EQ(offered_there(call).back().plan.forms.mask, "computed for each pair; keys are read where q_idx >= kv_idx");
  EXPECT_EQ(of(offered_there(invariant(call))).tested_heads, 0);
  call.mask = mods::documents(Capture("ids", DType::i32, 1));
  EXPECT_EQ(offered_there(call).front().plan.forms.mask,
            "computed for each pair; it bounds no keys, so blocks of 16 keys are read of which it leaves a pair");
  call.mask = leaf::q_idx() - leaf::kv_idx() < 64 * (leaf::h() + 1);
  call.options.bindings = {};
  EXPECT_EQ(of(offered_there(call)).tested_heads, 4);
  EXPECT_EQ(offered_there(call).front().plan.forms.mask,
            "computed for each pair; keys are read where q_idx - kv_idx < h * 64 + 64; blocks of 16 keys are read of "
            "which it leaves some head a pair");
  EXPECT_EQ(of(offered(call)).tested_heads, 0);  // other families have lists of blocks
  call.mask = mods::causal();
  EXPECT_EQ(of(offered_there(call)).tested_heads, 0);
  HopperCall wide = latent(16);
  wide.mask = leaf::q_idx() - leaf::kv_idx() < 64 * (leaf::h() + 1);
  EXPECT_EQ(of(offered_there(wide)).tested_heads, 0);  // by wgmma
  EXPECT_EQ(of(offered_there(wide, "a100")).tested_heads, 16);
}

// The device alone knows the lengths: the plan does not shrink, the prediction does.
TEST(DecodeMma, BoundsOfUnknownLengths) {
  HopperCall call = few();
  call.mask = leaf::q_idx() - leaf::kv_idx() < 128;
  problem::AttentionProblem problem = call.problem();
  problem.device_lengths = problem.device_starts = true;
  const std::vector<plan::Choice> choices =
      plan::decode_mma(problem, call.tensors(), {}, caps_of("h200"), [](BlockSize) { return nullptr; });
  EXPECT_EQ(choices.front().plan.grid, 16 * 8);
  EXPECT_LT(choices.front().plan.predicted->bytes, 2e6);
}

}  // namespace
}  // namespace heddle::test::decode
