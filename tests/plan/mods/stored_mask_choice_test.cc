// Stored masks of the Hopper forward: which are stored, in how many bytes, how explain() describes them, and which
// tiles share them.
#include "plan/mods/stored_mask_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"
#include "plan/hopper.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using plan::Choice;
using shared::MaskForm;
using testing::EndsWith;
using testing::HasSubstr;

constexpr const char* kLimit = "HEDDLE_MASK_BYTES";

std::vector<Choice> choices_of(const HopperCall& call) {
  return plan::forward_sm90(call.problem(), call.tensors(), call.all_options(), h200(),
                            [&](BlockSize block) { return call.rows_of(block); });
}

class StoredMask : public testing::Test {
 protected:
  StoredMask() {
    for (int i = 0; i < kRows; ++i) {
      ids_.push_back(i / 300);
      // Branches of 64, each from a node near by: all blocks near the diagonal are partial.
      enter_.push_back(i);
      last_.push_back((i / 512 + 1) * 512 - 1 - i % 64);
    }
  }
  HopperCall call_of(const Expr& mask, std::int64_t dim = 64) const {
    HopperCall call{.batch = 2, .q_heads = 4, .kv_heads = 4, .q_rows = kRows, .kv_rows = kRows, .dim = dim};
    call.mask = mask;
    call.options.bindings.captures["ids"] = {ids_.data(), DType::i32, Dims{kRows}};
    call.options.bindings.captures["enter"] = {enter_.data(), DType::i32, Dims{kRows}};
    call.options.bindings.captures["last"] = {last_.data(), DType::i32, Dims{kRows}};
    return call;
  }

  static constexpr int kRows = 2048;
  const Expr tree_ = mods::tree(Capture("enter", DType::i32, 1), Capture("last", DType::i32, 1));
  const Expr documents_ = mods::documents(Capture("ids", DType::i32, 1));

 private:
  std::vector<std::int32_t> ids_, enter_, last_;
};

// A mask whose bits are stored takes no registers, and hardly any of a step's time.
TEST_F(StoredMask, TakesTheLargeTiles) {
  for (const auto& [dim, tile] : {std::pair(std::int64_t{64}, BlockSize{192, 128}), {128, BlockSize{128, 128}}}) {
    HopperCall call = call_of(tree_, dim);
    call.batch = 8;  // tiles enough for all multiprocessors
    call.q_heads = call.kv_heads = 16;
    const Choice best = choices_of(call).front();
    EXPECT_EQ(best.plan.tile, tile) << dim;
    EXPECT_EQ(best.plan.part<shared::ForwardSm90Config>().mask, MaskForm::stored);
    EXPECT_FALSE(best.plan.part<shared::ForwardSm90Config>().mask_range);
  }
  const ScopedVariable nothing(kLimit, "0");
  EXPECT_EQ(choices_of(call_of(tree_)).front().plan.part<shared::ForwardSm90Config>().mask, MaskForm::values);
  bool any_spare = false;
  for (const Choice& choice : choices_of(call_of(tree_))) any_spare |= choice.plan.tile.kv == 64;
  EXPECT_TRUE(any_spare) << "what reads in each run may spill all others";
}

// Every other block of 64 keys: what has blocks of 128 multiplies twice as much. Finer blocks that leave out little
// more are not taken, whatever the model predicts for them.
TEST_F(StoredMask, TakesFinerBlocksWhereTheyLeaveOutMore) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr alternating = (floor_div(q, 64) + floor_div(kv, 64)) % 2 == 0 && kv % 3 != 1;
  for (const std::int64_t dim : {64, 128}) {
    HopperCall call = call_of(alternating, dim);
    call.batch = 8;
    call.q_heads = call.kv_heads = 16;
    const std::vector<Choice> choices = choices_of(call);
    EXPECT_EQ(choices.front().plan.tile, (BlockSize{128, 64})) << dim;
    EXPECT_EQ(choices.front().plan.part<shared::ForwardSm90Config>().mask, MaskForm::stored);
    call.mask = documents_ && mods::causal();
    for (const Choice& choice : choices_of(call)) {
      if (choice.plan.tile.kv != 64) continue;
      EXPECT_TRUE(plan::is_spare(choice.plan.part<shared::ForwardSm90Config>()));
      EXPECT_GT(choice.plan.predicted->seconds * 1.1, choices_of(call).front().plan.predicted->seconds);
    }
  }
}

TEST_F(StoredMask, IsOneThatReadsOrWorksOut) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const auto form = [&](const Expr& mask) {
    return choices_of(call_of(mask)).front().plan.part<shared::ForwardSm90Config>().mask;
  };
  EXPECT_EQ(form(documents_ && mods::causal()), MaskForm::stored);
  EXPECT_EQ(form(kv % (leaf::h() + 2) != 0), MaskForm::stored);
  EXPECT_EQ(form(mods::causal()), MaskForm::direct);
  EXPECT_EQ(form(mods::sliding_window(100)), MaskForm::distance);
  EXPECT_EQ(choices_of(call_of(mods::sliding_window(100))).front().plan.forms.mask,
            "a range of kv_idx - q_idx: from -100 to 0");
}

/// The bytes that the best plan says that it stores.
std::int64_t said_bytes(const plan::Plan& plan) {
  const std::size_t at = plan.forms.mask.find("stored: ");
  return at == std::string::npos ? -1 : std::stoll(plan.forms.mask.substr(at + 8));
}

TEST_F(StoredMask, StaysInsideItsBytes) {
  const HopperCall call = call_of(documents_ && mods::causal());
  std::int64_t most = 0;
  for (const Choice& choice : choices_of(call)) {
    EXPECT_THAT(choice.plan.forms.mask,
                testing::MatchesRegex("bits of [0-9]+ partial blocks are stored: [0-9]+ bytes"));
    most = std::max(most, said_bytes(choice.plan));
  }
  // Rows of at most 300 keys, of which all heads and sequences share one: 2048 queries and about three blocks of keys.
  EXPECT_GT(most, 2048 / 64 * 2 * 1024);
  EXPECT_LT(most, 2048 / 64 * 5 * 1024);
  {
    const ScopedVariable enough(kLimit, std::to_string(most).c_str());
    EXPECT_EQ(choices_of(call).front().plan.part<shared::ForwardSm90Config>().mask, MaskForm::stored);
  }
  const ScopedVariable short_of_one(kLimit, std::to_string(most - 1).c_str());
  for (const Choice& choice : choices_of(call)) {
    EXPECT_EQ(choice.plan.part<shared::ForwardSm90Config>().mask, MaskForm::both);
    EXPECT_TRUE(choice.plan.part<shared::ForwardSm90Config>().mask_range);
    EXPECT_EQ(choice.plan.forms.mask, "bits of partial blocks are found in each run: stored they would take " +
                                          std::to_string(most) + " bytes; up to " + std::to_string(most - 1) +
                                          " are taken (HEDDLE_MASK_BYTES)");
  }
}

TEST_F(StoredMask, SaysWhyItIsNone) {
  problem::AttentionProblem problem = call_of(documents_).problem();
  problem.device_lengths = true;
  EXPECT_EQ(plan::refuses_storing(problem, nullptr), "only cuda:0 knows the lengths");
  problem.device_lengths = false;
  EXPECT_EQ(plan::refuses_storing(problem, nullptr), "");

  const MaskShape shape = MaskShape::uniform(2, 4, kRows, kRows);
  const HopperCall call = call_of(documents_);
  const BlockMask built = BlockMask::build(documents_, shape, {128, 128}, call.options.bindings);
  EXPECT_EQ(plan::refuses_storing(problem, &built), "");
  HopperCall listed = call;
  listed.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::from_lists(built.to_lists(), shape, {128, 128}, documents_));
  const plan::Plan best = choices_of(listed).front().plan;
  EXPECT_EQ(best.part<shared::ForwardSm90Config>().mask, MaskForm::values);
  EXPECT_EQ(best.forms.mask,
            "bits of partial blocks are found in each run: block_mask is of lists, so each run may bring other "
            "params and captures");
}

// With few queries and grouped heads, kernels that pack heads find the bits themselves; kernels that do not pack store
// them.
TEST_F(StoredMask, IsNotOfPackedHeads) {
  HopperCall call = call_of(documents_);
  call.q_heads = 8, call.kv_heads = 1;
  call.q_rows = 4;
  int packed = 0;
  for (const Choice& choice : choices_of(call)) {
    const bool packs = choice.plan.part<shared::ForwardSm90Config>().packs();
    EXPECT_EQ(choice.plan.part<shared::ForwardSm90Config>().mask, packs ? MaskForm::values : MaskForm::stored);
    if (packs) {
      EXPECT_THAT(choice.plan.forms.mask, EndsWith("in each run: a tile packs several heads"));
    }
    packed += packs ? 1 : 0;
  }
  EXPECT_GT(packed, 0);
}

// With 8 bits one tile has more keys than words have bits.
TEST_F(StoredMask, PutsKernelsThatMaskEachElementLast) {
  HopperCall call = call_of(documents_, 128);
  call.dtype = DType::e4m3;
  const std::vector<Choice> choices = choices_of(call);
  ASSERT_GT(choices.size(), 2U);
  for (const Choice& choice : choices) {
    const bool wide = choice.plan.tile.kv == 192;
    EXPECT_EQ(choice.plan.part<shared::ForwardSm90Config>().mask, wide ? MaskForm::direct : MaskForm::stored);
    EXPECT_EQ(wide, &choice == &choices.back());
  }
  EXPECT_THAT(choices.front().plan.rejected, testing::Contains(HasSubstr("words have bits for 128 keys")));
  EXPECT_THAT(choices.back().plan.forms.mask,
              EndsWith("in each run: a tile has 192 keys, and words have bits for 128"));
}

// Words of a mask that does not ask for the head are there once.
TEST_F(StoredMask, IsSharedWhereRowsAre) {
  for (const bool by_head : {false, true}) {
    const Expr mask = by_head ? documents_ && leaf::kv_idx() % (leaf::h() + 2) != 0 : documents_ && mods::causal();
    const Choice best = choices_of(call_of(mask)).front();
    const plan::TileSchedule schedule = plan::forward_sm90_schedule(
        call_of(mask).problem(), best.plan.part<shared::ForwardSm90Config>(), best.block_mask.get(), h200());
    std::map<std::pair<int, int>, int> offsets;  // of tile and, where rows differ, head
    for (std::size_t i = 0; i < schedule.items.size(); ++i) {
      const shared::WorkItem& item = schedule.items[i];
      const std::pair key(item.q_tile, by_head ? item.head : 0);
      const auto [known, added] = offsets.emplace(key, schedule.mask_words_at[i]);
      EXPECT_EQ(known->second, schedule.mask_words_at[i]);
    }
    std::int64_t blocks = 0;
    for (const shared::StoredRun& run : schedule.stored.runs) {
      EXPECT_EQ(run.batch, 0);
      blocks += run.blocks;
    }
    EXPECT_EQ(blocks, schedule.stored.partial);
    const std::int64_t tiles = (kRows + best.plan.tile.q - 1) / best.plan.tile.q;
    EXPECT_EQ(std::ssize(offsets), by_head ? 4 * tiles : tiles);
    EXPECT_EQ(said_bytes(best.plan),
              shared::stored_bytes(schedule.stored.room, best.plan.part<shared::ForwardSm90Config>().warpgroups));
  }
}

}  // namespace
}  // namespace heddle::test
