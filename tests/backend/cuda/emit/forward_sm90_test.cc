// Text of kernels: golden files.
//
// The golden files are written anew by
//   HEDDLE_REFRESH_GOLDEN=1 build/release/tests/backend/cuda/emit/backend_cuda_emit_test
// Read the difference before committing it: kernels in every user's cache are made again.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "backend/gpu/stored_mask.h"
#include "expr/simplify.h"
#include "families/forward_sm90/forward_sm90_candidates.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "families/forward_sm90/forward_sm90_text.h"
#include "golden.h"
#include "heddle/mods.h"

namespace heddle::cuda::emit {
namespace {

using leaf::kv_idx;
using testing::HasSubstr;

void expect_golden_text(const std::string& file, const std::string& text) {
  test::expect_golden_text("tests/backend/cuda/emit/golden/" + file + ".txt", text);
}

// The whole source of a kernel: configuration, products, mask, in that order. A small tile keeps it short.
TEST(KernelText, Golden) {
  const shared::ForwardSm90Config config = {.qk_dim = 64,
                                            .v_dim = 24,
                                            .warpgroups = 2,
                                            .kv_block = 16,
                                            .stages = 3,
                                            .q_buffers = 2,
                                            .o_panels = 1,
                                            .f16 = true,
                                            .lse = false,
                                            .masked = true};
  plan::KernelMods mods;
  mods.mask = expr::simplify(mods::causal(), expr::Precision::f32);
  const jit::Source source = forward_sm90(config, mods, device_text::layout_of(mods.all()));
  EXPECT_EQ(source.name, "forward_sm90 f16 d64/24 128x16 masked");
  expect_golden_text("forward_sm90", source.text);
}

// Nothing of a stored mask is in the kernel, so that all of them share it.
TEST(KernelText, HasNothingOfAStoredMask) {
  const auto source_of = [](const Expr& mask) {
    plan::KernelMods mods;
    mods.mask = mods.mask_rest = expr::simplify(mask, expr::Precision::f32);
    mods.mask_form = shared::MaskForm::values;
    mods.stores_mask = true;
    const shared::ForwardSm90Config config = plan::config_with(plan::kForwardSm90Kernels[0].config(), mods);
    return forward_sm90(config, mods, device_text::layout_of(mods.of_kernel(config.stores_mask())));
  };
  const jit::Source documents = source_of(mods::documents(Capture("ids", DType::i64, 2)));
  EXPECT_EQ(documents.name, "forward_sm90 bf16 d64 192x128 masked by stored bits");
  EXPECT_THAT(documents.text, HasSubstr(".mask = heddle::shared::MaskForm::stored}"));
  EXPECT_EQ(documents.text, source_of(kv_idx() % (leaf::h() + 2) != param("rest", ExprType::i32)).text);
}

TEST(KernelText, GoldenOfWhatStoresMasks) {
  const Expr mask =
      expr::simplify(mods::documents(Capture("ids", DType::i64, 2)) & mods::causal(), expr::Precision::f32);
  const jit::Source source =
      gpu::cuda_dialect().source("stored_mask", gpu::stored_mask_text(mask, device_text::layout_of({mask})), "sm_90a");
  EXPECT_EQ(source.name, "stored_mask");
  expect_golden_text("stored_mask", source.text);
}

}  // namespace
}  // namespace heddle::cuda::emit
