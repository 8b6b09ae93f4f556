// The candidates of the Hopper family by storage: outputs of every type, 8 bits, captures of f32.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_choices.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/mods.h"
#include "plan/hopper/sm90_chip.h"
#include "plan/mods/streamed_read.h"

namespace heddle::test {
namespace {

using plan::Choice;
using shared::ForwardSm90Config;
using testing::Contains;
using testing::HasSubstr;

TEST(ForwardSm90Choice, OutputsOfEveryType) {
  using shared::StorageType;
  const HopperCall plain = {.q_rows = 1000, .kv_rows = 500, .dim = 64};
  const double bytes = choices_of(plain).front().plan.predicted->bytes;
  for (const auto& [dtype, type] : {std::pair(DType::bf16, StorageType::same),
                                    {DType::f64, StorageType::f64},
                                    {DType::f32, StorageType::f32},
                                    {DType::f16, StorageType::f16},
                                    {DType::e4m3, StorageType::e4m3},
                                    {DType::e5m2, StorageType::e5m2}}) {
    HopperCall call = plain;
    call.o_dtype = dtype;
    for (const Choice& choice : choices_of(call)) {
      EXPECT_EQ(choice.plan.part<shared::ForwardSm90Config>().o_type, type);
      EXPECT_EQ(choice.plan.predicted->bytes - bytes, 1000.0 * 64 * static_cast<double>(size_of(dtype) - 2));
    }
  }
  HopperCall halves = plain;
  halves.dtype = DType::f16;
  halves.o_dtype = DType::bf16;
  EXPECT_EQ(choices_of(halves).front().plan.part<shared::ForwardSm90Config>().o_type, StorageType::bf16);
}

TEST(ForwardSm90Choice, KernelsOfEightBits) {
  HopperCall call = {.q_rows = 1000, .kv_rows = 520, .dim = 100, .v_dim = 36, .dtype = DType::e5m2};
  const std::vector<Choice> choices = choices_of(call);
  ASSERT_FALSE(choices.empty());
  for (const Choice& choice : choices) {
    const ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
    EXPECT_EQ(config.q_fp8, shared::Fp8::e5m2);
    EXPECT_EQ(config.k_fp8, shared::Fp8::e5m2);
    EXPECT_EQ(config.v_fp8, shared::Fp8::e5m2);
    EXPECT_EQ(config.kv_block % 32, 0);
    EXPECT_EQ(config.qk_columns(), 128);
    EXPECT_EQ(config.v_columns(), 40);
    EXPECT_EQ(config.transposed_rows(), 64);
    EXPECT_EQ(config.qk_panels(), 1);
    EXPECT_EQ(config.output_panels(), 1);
    // Rows of 100 and 36 bytes are copied: written, and read once more.
    const double copied = 2.0 * (1000 * 112 + 520 * (112 + 48));
    EXPECT_EQ(choice.plan.predicted->bytes, 1000.0 * (100 + 2 * 36 + 4) + 520 * (100 + 36) + copied);
    EXPECT_EQ(config.weight_exponent, 0);
  }
  call.options.weight_mod = mods::dropout(0.6, 7);
  EXPECT_EQ(choices_of(call).front().plan.part<shared::ForwardSm90Config>().weight_exponent, 2);  // 1 / 0.4
  call.dtype = DType::bf16;
  EXPECT_EQ(choices_of(call).front().plan.part<shared::ForwardSm90Config>().weight_exponent, 0);
}

// A feature that only kernels of 16 bits have is refused by name.
TEST(ForwardSm90Choice, OfEightBitsNeitherStreamsNorMasksDraws) {
  HopperCall call = {.q_heads = 2, .kv_heads = 2, .q_rows = 512, .kv_rows = 512, .dtype = DType::e4m3};
  call.options.score_mod = leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  alignas(16) static constexpr char kNotRead[16] = {};
  call.options.bindings.captures["bias"] = ConstTensorView(kNotRead, DType::bf16, {2, 512, 512});
  call.options.weight_mod = mods::dropout(0.1, 1);
  for (const Choice& choice : choices_of(call)) {
    const ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
    EXPECT_EQ(config.streamed_bytes, 0);
    EXPECT_TRUE(config.weighted && !config.dropped);
    EXPECT_EQ(config.weight_exponent, 1);
    EXPECT_THAT(choice.plan.rejected,
                Contains(HasSubstr("tiles of capture 'bias', so each element is read: q is e4m3")));
    EXPECT_THAT(choice.plan.rejected, Contains(HasSubstr("masks of draws, so each is compared: q is e4m3")));
  }
  call.dtype = DType::bf16;
  const Choice halves = choices_of(call).front();
  EXPECT_GT(halves.plan.part<shared::ForwardSm90Config>().streamed_bytes, 0);
  EXPECT_TRUE(halves.plan.part<shared::ForwardSm90Config>().dropped);
  EXPECT_THAT(halves.plan.rejected, Not(Contains(HasSubstr("q is"))));
}

// Where tiles of f32 leave 128 x 128 no room, and three warpgroups of 80 keys no registers.
TEST(ForwardSm90Choice, HasAKernelForBiasesOfF32Alone) {
  const auto tiles = [](DType type, std::int64_t dim, bool streams) {
    HopperCall call = {.q_heads = 16, .kv_heads = 16, .q_rows = 8192, .kv_rows = 8192, .dim = dim};
    if (type != DType::i32) {
      call.options.score_mod = leaf::score() + Capture("bias", type, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
      call.options.bindings.captures["bias"] = ConstTensorView(
          reinterpret_cast<const void*>(std::uintptr_t{streams ? 4096U : 4100U}), type, {16, 8192, 8192});
    }
    std::vector<std::string> found;
    for (const Choice& choice : choices_of(call)) {
      found.push_back(fmt::format("{} x {}", choice.plan.tile.q, choice.plan.tile.kv));
    }
    return found;
  };
  const std::vector<std::string> wide = tiles(DType::f32, 128, true);
  EXPECT_THAT(wide, Contains("192 x 64"));
  EXPECT_THAT(tiles(DType::f32, 112, true), Contains("192 x 64"));
  EXPECT_LT(std::ranges::find(wide, "192 x 64"), std::ranges::find(wide, "128 x 64"));
  EXPECT_THAT(tiles(DType::bf16, 128, true), testing::Not(Contains("192 x 64")));
  EXPECT_THAT(tiles(DType::i32, 128, true), testing::Not(Contains("192 x 64")));
  EXPECT_THAT(tiles(DType::f32, 128, false), testing::Not(Contains("192 x 64")));  // element by element
  EXPECT_THAT(tiles(DType::f32, 64, true), testing::Not(Contains("192 x 64")));
  const ForwardSm90Config config = plan::kForwardSm90WideCaptureKernels.front().config();
  EXPECT_EQ(shared::forward_sm90_memory(config).bytes <= plan::kSm90SharedMemory, true);
  const std::optional<ForwardSm90Config> streaming = plan::with_streamed_tiles(config, DType::f32);
  ASSERT_TRUE(streaming);
  EXPECT_EQ(streaming->stages, 2);
  EXPECT_EQ(streaming->o_panels, 2);
  EXPECT_EQ(streaming->streamed_parts, 2);
  EXPECT_EQ(streaming->streamed_stages, 2);
  EXPECT_EQ(streaming->streamed_part_bytes(), 64 * 32 * 4);
  EXPECT_EQ(streaming->streamed_panels(), 1);
  EXPECT_LT(plan::forward_sm90_clocks(*streaming).full_step, plan::forward_sm90_clocks(config).full_step);
}

// Where two panels are two halves; those of 16 bits come whole.
TEST(ForwardSm90Choice, ReadsTilesOfF32InHalves) {
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      const std::optional<ForwardSm90Config> config = plan::with_streamed_tiles(kernel.config(), type);
      if (!config) continue;
      EXPECT_EQ(config->streamed_parts, type == DType::f32 && kernel.kv_block % 64 == 0 ? 2 : 1);
      EXPECT_EQ(config->streamed_stages % config->streamed_parts, 0);
      EXPECT_EQ(config->streamed_part_bytes() * config->streamed_parts, 64 * kernel.kv_block * config->streamed_bytes);
      EXPECT_EQ(config->streamed_panels() * config->streamed_panel_columns() +
                    config->streamed_rest_panels() * shared::kStreamedRestColumns,
                config->streamed_columns());
      EXPECT_LE(shared::forward_sm90_memory(*config).bytes, plan::kSm90SharedMemory);
    }
  }
}

// Sinks; an o of another type, and of q's own; masks by bits, of as many keys as two words hold.
TEST(ForwardSm90Choice, OfEightBitsTakesWhatOthersTake) {
  HopperCall call = {.q_heads = 2, .kv_heads = 2, .q_rows = 512, .kv_rows = 512, .dtype = DType::e4m3};
  call.mask = mods::causal() && (leaf::q_idx() - leaf::kv_idx()) % 4 == 0;
  call.options.sinks = ConstTensorView(nullptr, DType::f32, {2});
  EXPECT_EQ(choices_of(call).front().plan.part<shared::ForwardSm90Config>().o_type, shared::StorageType::same);
  call.o_dtype = DType::e4m3;
  bool any_wider = false;
  for (const Choice& choice : choices_of(call)) {
    const ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
    EXPECT_EQ(config.o_type, shared::StorageType::e4m3);
    EXPECT_TRUE(config.sinks);
    EXPECT_EQ(config.mask, config.kv_block > 128 ? shared::MaskForm::direct : shared::MaskForm::distance);
    any_wider = any_wider || config.kv_block > 128;
  }
  EXPECT_TRUE(any_wider);
}

}  // namespace
}  // namespace heddle::test
