// The portable family on AMD's GPUs: its fragments, its tiles and its refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "backend/portable/portable_config.h"
#include "backend/portable/portable_refuses.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "device/amd_architectures.h"
#include "families/forward_mma/forward_mma.h"
#include "plan/hopper.h"

namespace heddle::test {
namespace {

const device::AmdCaps& amd_caps_of(std::string_view gpu) {
  return std::ranges::find(device::kKnownAmdGpus, gpu, &device::KnownAmdGpu::name)->caps;
}
std::vector<shared::ForwardMmaConfig> offered_on_amd(const HopperCall& call, std::string_view gpu) {
  std::vector<shared::ForwardMmaConfig> configs;
  for (const plan::Choice& choice :
       plan::forward_mma(call.problem(), call.tensors(), call.all_options(), amd_caps_of(gpu),
                         [&](BlockSize block) { return call.rows_of(block); })) {
    configs.push_back(choice.plan.part<shared::ForwardMmaConfig>());
  }
  return configs;
}

// Where 64 rows of queries have no room.
TEST(ForwardMmaOnAmd, HasTilesOfFewerRows) {
  using shared::FragmentKind;
  const auto tile = [](const shared::ForwardMmaConfig& config) {
    return std::array{config.rows(), config.tile().unit_rows, config.packed_heads};
  };
  const auto matrix = offered_on_amd({.dim = 512}, "rx7900xtx");
  EXPECT_EQ(tile(matrix.front()), (std::array{32, 32, 1}));
  EXPECT_EQ(matrix.front().fragments, FragmentKind::gfx11);
  // Plain multiply-adds follow where the matrix kernel has room, too: its registers are known when it is compiled.
  const auto plain = offered_on_amd({.dim = 512}, "mi300x");
  EXPECT_EQ(plain.front().fragments, FragmentKind::gfx9);
  EXPECT_EQ(tile(plain.back()), (std::array{32, 32, 1}));
  EXPECT_EQ(plain.back().fragments, FragmentKind::fma);
}

TEST(ForwardMmaOnAmd, TakesAnAmdChipsOwnFragments) {
  using shared::FragmentKind;
  struct Row {
    const char* gpu;
    FragmentKind narrow;
    int threads;
  };
  for (const Row& row : {Row{"rx6800xt", FragmentKind::fma, 128}, Row{"rx7900xtx", FragmentKind::gfx11, 128},
                         Row{"rx9070xt", FragmentKind::gfx12, 128}, Row{"mi210", FragmentKind::gfx9, 128},
                         Row{"mi300x", FragmentKind::gfx9, 128}}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      const auto configs = offered_on_amd({.dim = dim}, row.gpu);
      EXPECT_EQ(configs.front().fragments, row.narrow) << row.gpu << " " << dim;
      EXPECT_EQ(configs.front().threads(), row.threads) << row.gpu << " " << dim;
      // If no kernel of matrix instructions fits, plain ones may.
      EXPECT_EQ(configs.back().fragments, FragmentKind::fma) << row.gpu << " " << dim;
    }
    for (const bool allow_tf32 : {false, true}) {
      HopperCall call = {.dim = 64, .dtype = DType::f32};
      call.options.allow_tf32 = allow_tf32;
      EXPECT_EQ(offered_on_amd(call, row.gpu).front().fragments, FragmentKind::fma);
    }
    // A load passes through a register, so nothing comes while a wave computes.
    EXPECT_EQ(offered_on_amd({.q_rows = 1, .dim = 64, .dtype = DType::f32}, row.gpu).front().stages, 1);
  }
  EXPECT_EQ(plan::amd_target("gfx1200").of_16_bits, FragmentKind::gfx12);
  EXPECT_EQ(plan::amd_target("gfx1250").of_16_bits, FragmentKind::fma);
  EXPECT_EQ(plan::amd_target("gfx1151").of_16_bits, FragmentKind::gfx11);
  EXPECT_EQ(plan::amd_target("gfx908").of_16_bits, FragmentKind::fma);
}

TEST(ForwardMmaOnAmd, RefusesAmdChipsThatNobodyKnows) {
  device::AmdCaps caps = amd_caps_of("mi300x");
  const HopperCall call;
  EXPECT_EQ(plan::portable_refuses(call.problem(), call.all_options(), caps), "");
  caps.architecture = "gfx803";
  EXPECT_EQ(plan::portable_refuses(call.problem(), call.all_options(), caps),
            "rocm:0 (AMD Instinct MI300X) is gfx803; gfx9, gfx10, gfx11 and gfx12 are accepted");
}

}  // namespace
}  // namespace heddle::test
