// The text of the kernel that stores a mask's bits. Golden files are written anew with HEDDLE_REFRESH_GOLDEN=1, as in
// expression_text_test.cc.
#include <gtest/gtest.h>

#include "backend/gpu/dialect.h"
#include "backend/gpu/stored_mask_launch.h"
#include "expr/simplify.h"
#include "golden.h"
#include "heddle/mods.h"

namespace heddle::gpu {
namespace {

TEST(StoredMaskText, Golden) {
  const Expr mask =
      expr::simplify(mods::documents(Capture("ids", DType::i64, 2)) & mods::causal(), expr::Precision::f32);
  const jit::Source source =
      cuda_dialect().source("stored_mask", stored_mask_text(mask, device_text::layout_of({mask})), "sm_90a");
  EXPECT_EQ(source.name, "stored_mask");
  test::expect_golden_text("tests/backend/gpu/golden/stored_mask.txt", source.text);
}

}  // namespace
}  // namespace heddle::gpu
