// The candidates of the Hopper family: which, in which order, with which reasons.
#include "families/forward_sm90/forward_sm90.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "expect_error.h"
#include "families/forward_sm90/forward_sm90_choices.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/mods.h"
#include "plan/hopper/sm90_chip.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using plan::Choice;
using shared::ForwardSm90Config;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;

/// The benchmark's: 16384 tokens in sequences of `length`, heads that add up to 2048 columns.
HopperCall grid_call(std::int64_t dim, std::int64_t length, bool causal) {
  HopperCall call = {.batch = 16384 / length,
                     .q_heads = 2048 / dim,
                     .kv_heads = 2048 / dim,
                     .q_rows = length,
                     .kv_rows = length,
                     .dim = dim};
  if (causal) call.mask = mods::causal();
  return call;
}

HopperCall call_with_blocks(std::int64_t dim, BlockSize block, std::int64_t kv_rows = 1000) {
  HopperCall call = {.q_rows = 1000, .kv_rows = kv_rows, .dim = dim};
  const Expr mask = mods::causal();
  call.options.block_mask =
      std::make_shared<BlockMask>(BlockMask::build(mask, MaskShape::uniform(1, 1, 1000, kv_rows), block));
  call.mask = mask;
  return call;
}

TEST(ForwardSm90Choice, IsWhatMeasuredFastest) {
  const BlockSize wide64 = {192, 128}, wide96 = {192, 96}, wide128 = {192, 80}, narrow = {128, 128};
  const auto best = [](std::int64_t dim, std::int64_t length, bool causal) {
    return choices_of(grid_call(dim, length, causal)).front().plan.tile;
  };
  for (const std::int64_t length : {2048, 8192, 16384}) {
    SCOPED_TRACE(length);
    EXPECT_EQ(best(64, length, false), wide64);
    EXPECT_EQ(best(64, length, true), wide64);
    EXPECT_EQ(best(96, length, false), wide96);
    EXPECT_EQ(best(96, length, true), wide96);
    EXPECT_EQ(best(128, length, false), wide128);
    if (length > 2048) {  // there the two are within a hundredth
      EXPECT_EQ(best(128, length, true), wide128);
    }
    EXPECT_EQ(best(256, length, false), (BlockSize{128, 64}));
    EXPECT_EQ(best(256, length, true), (BlockSize{128, 64}));
  }
  EXPECT_EQ(best(64, 512, true), wide64);
  EXPECT_EQ(best(96, 512, false), narrow);
  EXPECT_EQ(best(96, 512, true), narrow);
  EXPECT_EQ(best(128, 512, false), narrow);
  EXPECT_EQ(best(128, 512, true), narrow);
}

// The chosen kernels' times on the same grid, in milliseconds (bench_forward_sm90_costs). The model is there to choose,
// not to foretell, but it should not be far off.
TEST(ForwardSm90Choice, PredictsTheMeasuredTimes) {
  struct Measured {
    std::int64_t dim, length;
    double full, causal;
  };
  for (const Measured& measured : {Measured{64, 512, 0.173, 0.131},
                                   {64, 8192, 1.855, 1.002},
                                   {96, 512, 0.151, 0.106},
                                   {96, 8192, 1.565, 0.814},
                                   {128, 512, 0.128, 0.091},
                                   {128, 8192, 1.423, 0.728},
                                   {192, 512, 0.126, 0.093},
                                   {192, 8192, 1.278, 0.663},
                                   {256, 512, 0.123, 0.091},
                                   {256, 8192, 1.346, 0.689}}) {
    for (const bool causal : {false, true}) {
      const double want = causal ? measured.causal : measured.full;
      const plan::Plan plan = choices_of(grid_call(measured.dim, measured.length, causal)).front().plan;
      EXPECT_NEAR(plan.predicted->seconds * 1e3, want, 0.08 * want) << measured.dim << ", " << measured.length;
    }
  }
}

TEST(ForwardSm90Choice, FillsInTheWholePlan) {
  HopperCall call = {.batch = 2, .q_heads = 8, .kv_heads = 2, .q_rows = 1000, .kv_rows = 520, .dtype = DType::f16};
  const std::vector<Choice> choices = choices_of(call);
  ASSERT_EQ(choices.size(), 2U);
  for (const Choice& choice : choices) {
    const plan::Plan& plan = choice.plan;
    EXPECT_EQ(plan.device, 0);
    // 2 * 8 heads have 8 tiles of 128 queries each: 128 for 132 CTAs; of 192 queries fewer.
    EXPECT_EQ(plan.workspace_bytes, 0);
    EXPECT_EQ(choice.block_mask, nullptr);
    EXPECT_EQ(plan.schedule != nullptr, &choice == &choices.front());  // lists are large: the best alone keeps them
    const ForwardSm90Config& config = plan.part<shared::ForwardSm90Config>();
    EXPECT_EQ(plan.tile, (BlockSize{config.rows(), config.kv_block}));
    EXPECT_EQ(config.qk_dim, 128);
    EXPECT_EQ(config.v_dim, 128);
    EXPECT_TRUE(config.f16);
    EXPECT_TRUE(config.lse);
    EXPECT_FALSE(config.masked);
    const std::int64_t tiles = 2 * 8 * ((1000 + config.rows() - 1) / config.rows());
    EXPECT_EQ(plan.grid, std::min<std::int64_t>(132, tiles));
    EXPECT_EQ(plan.predicted->flops, 4.0 * 128 * 2 * 8 * 1000 * 520);
    EXPECT_EQ(plan.predicted->bytes, 2.0 * 2 * 8 * 1000 * (2 * 128 * 2 + 4) / 2 + 2.0 * 2 * 520 * 2 * 128 * 2);
  }
  call.with_lse = false;
  call.dtype = DType::bf16;
  call.mask = mods::causal();
  const Choice masked = choices_of(call).front();
  EXPECT_FALSE(masked.plan.part<shared::ForwardSm90Config>().f16);
  EXPECT_FALSE(masked.plan.part<shared::ForwardSm90Config>().lse);
  EXPECT_TRUE(masked.plan.part<shared::ForwardSm90Config>().masked);
  EXPECT_EQ(masked.block_mask->block(), (BlockSize{64, masked.plan.tile.kv}));
}

TEST(ForwardSm90Choice, TellsTheKernelOfSinksAndNormalizers) {
  HopperCall call{.q_heads = 2};
  EXPECT_FALSE(choices_of(call).front().plan.part<shared::ForwardSm90Config>().sinks);
  EXPECT_EQ(choices_of(call).front().plan.part<shared::ForwardSm90Config>().normalizer, shared::Normalizer::softmax);
  call.options.sinks = ConstTensorView(nullptr, DType::f32, {2});
  for (const Choice& choice : choices_of(call)) EXPECT_TRUE(choice.plan.part<shared::ForwardSm90Config>().sinks);
  call = {.with_lse = false};
  for (const auto& [given, own] :
       {std::pair(Normalizer::none, shared::Normalizer::none), {Normalizer::sigmoid, shared::Normalizer::sigmoid}}) {
    call.options.normalizer = given;
    for (const Choice& choice : choices_of(call))
      EXPECT_EQ(choice.plan.part<shared::ForwardSm90Config>().normalizer, own);
  }
}

TEST(ForwardSm90Choice, CountsWhatEachWarpgroupAttends) {
  // Queries 0 to 63 see one block of 64 keys, 64 to 127 two, and so on; the last 10 see five, the last of 10 keys.
  const HopperCall call = {.q_rows = 266, .kv_rows = 266, .dim = 256, .mask = mods::causal()};
  const std::vector<Choice> choices = choices_of(call);
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_EQ(choices[0].plan.predicted->flops, 4.0 * 256 * (64 * 64 * (1 + 2 + 3 + 4) + 10 * 266));
}

TEST(ForwardSm90Choice, CountsPartialBlocksByTheirArea) {
  const HopperCall call = {.q_rows = 300, .kv_rows = 300, .mask = mods::causal()};
  const std::vector<Choice> choices = choices_of(call);
  const auto narrow = std::ranges::find(choices, BlockSize{128, 128}, [](const Choice& c) { return c.plan.tile; });
  ASSERT_NE(narrow, choices.end());
  EXPECT_EQ(narrow->plan.predicted->flops, 4.0 * 128 * (128 * 128 + 128 * 256 + 44 * 300));
}

TEST(ForwardSm90Choice, PredictsNoLessThanMemoryTakes) {
  // One query a head: nearly no products, all keys and values.
  const HopperCall call = {.batch = 64, .q_heads = 64, .kv_heads = 64, .q_rows = 1, .kv_rows = 8192};
  const plan::Prediction predicted = choices_of(call).front().plan.predicted.value();
  EXPECT_GE(predicted.seconds, predicted.bytes / plan::kSm90Rates.memory_bytes_per_second);
  EXPECT_GT(predicted.bytes, 2.0 * 64 * 64 * 8192 * 128 * 2);
}

TEST(ForwardSm90Choice, SharesKeysOfTheWholeBatchOnce) {
  HopperCall call = {.batch = 4, .q_rows = 128, .kv_rows = 1024, .with_lse = false};
  const double separate = choices_of(call).front().plan.predicted->bytes;
  call.shared_kv = true;
  EXPECT_EQ(separate - choices_of(call).front().plan.predicted->bytes, 3.0 * 1024 * 2 * 128 * 2);
}

TEST(ForwardSm90Choice, HoldsEveryKernelInSharedMemory) {
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    const ForwardSm90Config config = kernel.config();
    EXPECT_LE(shared::forward_sm90_memory(config).bytes, plan::kSm90SharedMemory);
    EXPECT_EQ(config.kv_block % 16, 0);
    EXPECT_LE(config.o_panels, config.output_panels());
  }
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    const ForwardSm90Config config = kernel.config();
    EXPECT_TRUE(config.fp8());
    EXPECT_LE(shared::forward_sm90_memory(config).bytes, plan::kSm90SharedMemory);
    EXPECT_EQ(config.kv_block % 32, 0);
    EXPECT_LE(config.o_panels, config.output_panels());
  }
}

TEST(ForwardSm90Choice, ServesEveryHeadDimByTheNextKernels) {
  using plan::HeadDims;
  for (const auto& [dims, native] : {std::pair<HeadDims, HeadDims>{{1, 1}, {64, 64}},
                                     {{64, 64}, {64, 64}},
                                     {{65, 64}, {96, 96}},
                                     {{80, 80}, {96, 96}},
                                     {{96, 64}, {96, 96}},
                                     {{64, 128}, {128, 128}},
                                     {{128, 8}, {128, 128}},
                                     {{192, 128}, {192, 128}},
                                     {{136, 40}, {192, 128}},
                                     {{160, 160}, {192, 192}},
                                     {{40, 129}, {192, 192}},
                                     {{193, 1}, {256, 256}},
                                     {{256, 256}, {256, 256}},
                                     {{257, 64}, {0, 0}},
                                     {{64, 257}, {0, 0}}}) {
    EXPECT_TRUE(plan::native_dims(dims) == native) << plan::to_string(dims);
  }
  EXPECT_EQ(plan::to_string(HeadDims{96, 96}), "96");
  EXPECT_EQ(plan::to_string(HeadDims{192, 128}), "192/128");
}

TEST(ForwardSm90Choice, MultipliesAndCountsTrueHeadDims) {
  const HopperCall call = {.q_rows = 1000, .kv_rows = 520, .dim = 100, .v_dim = 36};
  for (const Choice& choice : choices_of(call)) {
    const ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
    EXPECT_EQ(config.qk_dim, 100);
    EXPECT_EQ(config.v_dim, 36);
    EXPECT_EQ(config.qk_columns(), 112);
    EXPECT_EQ(config.v_columns(), 40);
    EXPECT_EQ(config.qk_panels(), 2);
    EXPECT_EQ(config.v_panels(), 1);
    EXPECT_EQ(config.o_panels, 1);
    EXPECT_EQ(choice.plan.predicted->flops, 2.0 * (100 + 36) * 1000 * 520);
    // Rows of 200 and 72 bytes are copied: written, and read once more.
    const double copied = 2.0 * (1000 * 208 + 520 * (208 + 80));
    EXPECT_EQ(choice.plan.predicted->bytes, 1000.0 * (2 * (100 + 36) + 4) + 2.0 * 520 * (100 + 36) + copied);
  }
}

// A head dim between two native ones costs what lies between.
TEST(ForwardSm90Choice, PredictsWhatTrueHeadDimsTake) {
  double last = 0;
  for (const std::int64_t dim : {72, 80, 88, 96}) {
    HopperCall call = grid_call(64, 8192, false);
    call.dim = dim;
    const double seconds = choices_of(call).front().plan.predicted->seconds;
    EXPECT_GT(seconds, last) << dim;
    last = seconds;
  }
}

// A step has bits for so many blocks of keys.
TEST(ForwardSm90Choice, LeavesOutKernelsWhoseStepsCannotCountTheKeys) {
  constexpr std::int64_t kLast = std::int64_t{shared::kMaxKvBlocks} * 32;
  const HopperCall call = call_with_blocks(256, {64, 32}, kLast), longer = call_with_blocks(256, {64, 32}, kLast + 1);
  EXPECT_THAT(tiles_of(choices_of(call)), ElementsAre(BlockSize{128, 32}));
  expect_error([&] { choices_of(longer); }, ErrorCode::unsupported, HasSubstr("takes up to 16777216 rows of k"));
}

TEST(ForwardSm90Choice, SaysHowMuchSlowerTheRestIs) {
  const std::vector<Choice> choices = choices_of(grid_call(64, 8192, false));
  ASSERT_THAT(tiles_of(choices), ElementsAre(BlockSize{192, 128}, BlockSize{128, 128}));
  EXPECT_LT(choices[0].plan.predicted->seconds, choices[1].plan.predicted->seconds);
  EXPECT_THAT(
      choices[0].plan.rejected,
      ElementsAre(MatchesRegex("128 queries x 128 keys, 2 warpgroups: predicted [0-9.]+ ms, [0-9.]+ % slower")));
  EXPECT_THAT(choices[1].plan.rejected, IsEmpty());
}

TEST(ForwardSm90Choice, PutsKernelsThatMaySpillLast) {
  const ScopedVariable unstored("HEDDLE_MASK_BYTES", "0");  // stored, a mask takes no registers
  HopperCall call = grid_call(64, 8192, false);
  const Tensor ids = Tensor::zeros(DType::i32, {8192});
  const auto documents = [&](const char* name) {
    call.options.bindings.captures[name] = ids;
    return mods::documents(Capture(name, DType::i32, 1));
  };
  call.mask = documents("ids") & mods::causal();
  // A mask that reads gets the spare kernels, too.
  const BlockSize three{192, 128}, two{128, 128}, spare{192, 112}, small{128, 64};
  EXPECT_THAT(tiles_of(choices_of(call)), ElementsAre(three, spare, two, small));

  call.mask = call.mask & documents("languages");
  const std::vector<Choice> choices = choices_of(call);
  EXPECT_THAT(tiles_of(choices), ElementsAre(spare, two, small, three));
  EXPECT_THAT(choices[0].plan.rejected,
              Contains(MatchesRegex("192 queries x 128 keys, 3 warpgroups: needs about [0-9]+ registers of the 160 "
                                    "that a thread has")));
}

// Comparing draws one by one costs several times as much, whatever the tile.
TEST(ForwardSm90Choice, PutsKernelsThatWeighEachElementLast) {
  for (const std::int64_t dim : {64, 128, 192}) {
    HopperCall call = grid_call(dim, 8192, false);
    call.options.weight_mod = mods::dropout(0.1, 1);
    const std::vector<Choice> choices = choices_of(call);
    EXPECT_TRUE(choices.front().plan.part<shared::ForwardSm90Config>().dropped) << dim;
    EXPECT_FALSE(choices.back().plan.part<shared::ForwardSm90Config>().dropped) << dim;
    EXPECT_TRUE(std::ranges::is_partitioned(choices, [](const Choice& one) {
      return one.plan.part<shared::ForwardSm90Config>().dropped;
    })) << dim;
    EXPECT_THAT(choices.front().plan.rejected, Contains(HasSubstr("64 does not divide its keys")));
  }
}

// Kernels that look up positions come first; behind them stand those of the same tiles whose mods do, for masks of
// rows.
TEST(ForwardSm90Choice, LooksUpPositionsWhereBlocksLieInGranules) {
  HopperCall call = grid_call(128, 4096, false);
  const Tensor granules = Tensor::zeros(DType::i32, {32});
  for (int i = 0; i < 32; ++i) static_cast<std::int32_t*>(granules.data())[i] = i;
  for (const char* name : {"q_granules", "kv_granules"}) call.options.bindings.captures[name] = granules;
  const auto placed = [](const Expr& mod) {
    return mods::by_granules(mod, Capture("q_granules", DType::i32, 1), Capture("kv_granules", DType::i32, 1));
  };
  call.mask = placed(mods::causal());
  const auto looks_up = [](const Choice& choice) {
    const auto& config = choice.plan.part<shared::ForwardSm90Config>();
    return config.placed_queries && config.placed_keys;
  };
  const std::vector<Choice> choices = choices_of(call);
  EXPECT_EQ(choices.front().plan.tile, (BlockSize{128, 128}));
  EXPECT_EQ(choices.front().plan.forms.places, "queries by granules of 128 rows, keys by granules of 128 rows");
  EXPECT_TRUE(looks_up(choices.front()));
  EXPECT_FALSE(looks_up(choices.back()));
  EXPECT_TRUE(std::ranges::is_partitioned(choices, looks_up));
  EXPECT_TRUE(std::ranges::all_of(choices, [](const Choice& one) { return 128 % one.plan.tile.kv == 0; }));
  EXPECT_THAT(choices.front().plan.rejected,
              AllOf(Contains(HasSubstr("80 keys do not divide the 128 of a granule")),
                    Contains(HasSubstr("would look up the position of each row and key"))));

  // Keys in one piece leave every tile.
  call.mask = leaf::kv_idx() <= clip(Capture("q_granules", DType::i32, 1)(floor_div(leaf::q_idx(), 128)), 0, 31) * 128 +
                                    leaf::q_idx() % 128;
  const Choice of_queries = choices_of(call).front();
  EXPECT_EQ(of_queries.plan.tile, (BlockSize{192, 80}));
  EXPECT_TRUE(of_queries.plan.part<shared::ForwardSm90Config>().placed_queries);
  EXPECT_FALSE(of_queries.plan.part<shared::ForwardSm90Config>().placed_keys);
}

TEST(ForwardSm90Choice, FitsTheCallersBlocks) {
  for (const BlockSize block : {BlockSize{64, 128}, BlockSize{128, 128}, BlockSize{512, 384}}) {
    const std::vector<Choice> choices = choices_of(call_with_blocks(128, block));
    ASSERT_THAT(tiles_of(choices), ElementsAre(BlockSize{128, 128})) << block.q;
    EXPECT_EQ(choices[0].block_mask->block(), block);
    EXPECT_THAT(choices[0].plan.rejected, ElementsAre(HasSubstr("80 keys do not divide the ")));
  }
  const BlockSize both = {64, 640};  // a warpgroup's queries
  EXPECT_EQ(choices_of(call_with_blocks(128, both)).size(), 2U);
  // 64 keys a block need the kernels of last resort.
  EXPECT_THAT(tiles_of(choices_of(call_with_blocks(128, {128, 64}))), ElementsAre(BlockSize{128, 64}));
  EXPECT_THAT(tiles_of(choices_of(call_with_blocks(64, {128, 64}))), ElementsAre(BlockSize{128, 64}));
  EXPECT_THAT(tiles_of(choices_of(call_with_blocks(256, {128, 64}))), ElementsAre(BlockSize{128, 64}));
}

// With 8 bits and D 256, tiles of 64 keys spill where a mod is added, so one of 32 stands behind them.
TEST(ForwardSm90Choice, HasASmallTileForTheWidestHeads) {
  for (const bool fp8 : {false, true}) {
    const auto kernels = plan::forward_sm90_kernels(fp8);
    EXPECT_TRUE(std::ranges::any_of(kernels, [](const plan::ForwardSm90Kernel& kernel) {
      return kernel.qk_dim == 256 && kernel.v_dim == 256 && kernel.kv_block == 32;
    })) << fp8;
  }
}

TEST(ForwardSm90Choice, NamesEveryKernelThatDoesNotFit) {
  expect_error(
      [] {
        choices_of(call_with_blocks(128, {128, 96}));
      },
      ErrorCode::unsupported,
      "no kernel of forward_sm90 fits: 192 queries x 80 keys, 3 warpgroups: 80 keys do not divide the 96 of a "
      "block of block_mask; 128 queries x 128 keys, 2 warpgroups: 128 keys do not divide the 96 of a "
      "block of block_mask; 128 queries x 64 keys, 2 warpgroups: 64 keys do not divide the 96 of a block of "
      "block_mask");
  expect_error(
      [] {
        choices_of(call_with_blocks(256, {96, 64}));
      },
      ErrorCode::unsupported,
      "no kernel of forward_sm90 fits: 128 queries x 64 keys, 2 warpgroups: a warpgroup's 64 queries do not divide "
      "the 96 of a block of block_mask; 128 queries x 32 keys, 2 warpgroups: a warpgroup's 64 queries do not divide "
      "the 96 of a block of block_mask");
}

}  // namespace
}  // namespace heddle::test
