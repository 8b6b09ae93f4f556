// Text of forward_sm90's kernels, held against a golden file.
//
// The golden file is written anew by
//   HEDDLE_REFRESH_GOLDEN=1 build/release/tests/families/families_test
// Read the difference before committing it: kernels in every user's cache are made again.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "expr/simplify.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "golden.h"
#include "heddle/mods.h"

namespace heddle::forward_sm90 {
namespace {

using leaf::kv_idx;
using testing::HasSubstr;

// The whole source of a kernel: configuration, products, mask, in that order. A small tile keeps it short.
TEST(ForwardSm90Text, Golden) {
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
  const jit::Source made = source(config, mods, device_text::layout_of(mods.all()));
  EXPECT_EQ(made.name, "forward_sm90 f16 d64/24 128x16 masked");
  test::expect_golden_text("tests/families/forward_sm90/golden/forward_sm90.txt", made.text);
}

// Nothing of a stored mask is in the kernel, so that all of them share it.
TEST(ForwardSm90Text, HasNothingOfAStoredMask) {
  const auto source_of = [](const Expr& mask) {
    plan::KernelMods mods;
    mods.mask = mods.mask_rest = expr::simplify(mask, expr::Precision::f32);
    mods.mask_form = shared::MaskForm::values;
    mods.stores_mask = true;
    const shared::ForwardSm90Config config = plan::config_with(plan::kForwardSm90Kernels[0].config(), mods);
    return source(config, mods, device_text::layout_of(mods.of_kernel(config.stores_mask())));
  };
  const jit::Source documents = source_of(mods::documents(Capture("ids", DType::i64, 2)));
  EXPECT_EQ(documents.name, "forward_sm90 bf16 d64 192x128 masked by stored bits");
  EXPECT_THAT(documents.text, HasSubstr(".mask = heddle::shared::MaskForm::stored}"));
  EXPECT_EQ(documents.text, source_of(kv_idx() % (leaf::h() + 2) != param("rest", ExprType::i32)).text);
}

}  // namespace
}  // namespace heddle::forward_sm90
