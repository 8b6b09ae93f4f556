// The source of mask_rows: its generated text, and what NVRTC makes of it. Golden files are written anew with
// HEDDLE_REFRESH_GOLDEN=1, as in expression_text_test.cc.
#include "backend/gpu/mask_rows_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cuda/jit/cuda_jit.h"
#include "backend/gpu/dialect.h"
#include "expect_error.h"
#include "expr/simplify.h"
#include "golden.h"
#include "heddle/mods.h"
#include "mask/random_mask.h"
#include "mask/ready_made.h"

namespace heddle::gpu {
namespace {

RowMask prepared(const Expr& mask) { return row_mask(expr::simplify(mask, expr::Precision::f32)); }

void expect_golden(const std::string& file, const Expr& mask) {
  const std::string text = mask_rows_text(prepared(mask));
  test::expect_golden_text("tests/backend/gpu/golden/" + file + ".txt", text);
}

TEST(MaskRowsText, Golden) {
  expect_golden("mask_rows_causal", mods::causal());
  expect_golden("mask_rows_packed", mods::documents(Capture("ids", DType::i64, 1)) &
                                        (leaf::q_token() >= leaf::kv_token()) &
                                        (leaf::q_idx() - leaf::kv_idx() <= param("window", ExprType::i32)));
}

TEST(MaskRowsText, ZonesStandAlongTheAxisThatMoves) {
  const Capture ids("ids", DType::i32, 2), length("length", DType::i32, 1), table("table", DType::boolean, 2);
  const RowMask mask = prepared((ids(leaf::b(), leaf::q_idx()) == ids(leaf::b(), leaf::kv_idx())) &
                                (leaf::kv_idx() < length(leaf::b())) & table(leaf::q_idx(), leaf::kv_idx()));
  ASSERT_EQ(mask.layout.captures.size(), 3U);
  EXPECT_EQ(mask.axes, (device_text::ZoneAxes{1, -1, -1}));  // ids, length, table
}

// The kernels' kv_idx is the position; tokens are counted from it.
TEST(MaskRowsText, WritesKvStartAsAValue) {
  const plan::KvStart each = {.form = plan::KvStart::Form::capture};
  const RowMask mask = row_mask(leaf::kv_idx() < 9, each);
  EXPECT_EQ(print(mask.mask), "kv_idx + kv_start[b] < 9");
  ASSERT_EQ(mask.layout.captures.size(), 1U);
  EXPECT_EQ(mask.layout.captures[0].name, "kv_start");
  EXPECT_EQ(mask.axes, (device_text::ZoneAxes{-1}));
  EXPECT_EQ(print(row_mask(leaf::kv_idx() < 9, {.form = plan::KvStart::Form::param}).mask), "kv_idx + kv_start < 9");
  EXPECT_EQ(print(row_mask(leaf::kv_token() < 9, each).mask), "kv_idx + kv_token < 9");
  EXPECT_EQ(print(row_mask(leaf::kv_idx() - leaf::kv_start() < 9).mask), "kv_idx < 9");
}

TEST(MaskRowsText, SaysThatKvStartTakesACapture) {
  Expr mask = leaf::kv_idx() < 9;
  for (int i = 0; i < 8; ++i) mask = mask & Capture(fmt::format("c{}", i), DType::boolean, 1)(leaf::b());
  EXPECT_EQ(row_mask(mask).layout.captures.size(), 8U);
  expect_error([&] { row_mask(mask, {.form = plan::KvStart::Form::capture}); }, ErrorCode::unsupported,
               "the mods read 9 captures, that of kv_start among them, but a CUDA kernel takes at most 8");
}

TEST(MaskRowsText, RefusesWhatBackendsMayRoundDifferently) {
  EXPECT_EQ(row_mask_refused(mods::causal()), "");
  EXPECT_EQ(row_mask_refused(exp(to_f32(leaf::q_idx())) > 3),
            "`exp` may differ in its last bits between the host and a GPU");
}

/// HEDDLE_REQUIRE_NVRTC makes the compiler's absence a failure.
class MaskRowsCompile : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = cuda::jit::compiler_missing();
    if (missing.empty()) return;
    if (std::getenv("HEDDLE_REQUIRE_NVRTC") != nullptr) FAIL() << missing;
    GTEST_SKIP() << missing;
  }
  /// Returns the bytes that the kernels spill.
  static int compile(const Expr& mask) {
    jit::Source source = cuda_dialect().source("mask_rows", mask_rows_text(prepared(mask)), "sm_90a");
    source.has_alternative = false;  // as Gpu::source() says
    const auto cubin = cuda::jit::build(source);
    EXPECT_FALSE(cubin->bytes.empty());
    fmt::print("{} registers, {} bytes spilled, {} bytes of stack, {:.0f} ms: {}\n", cubin->registers,
               cubin->spill_bytes, cubin->stack_bytes, cubin->compile_ms, print(mask));
    return cubin->spill_bytes;
  }
  static void expect_no_spills(const Expr& mask) { EXPECT_EQ(compile(mask), 0) << print(mask); }
};

TEST_F(MaskRowsCompile, ReadyMadeMasks) {
  const heddle::test::ReadyMade ready;
  for (const char* name :
       {"causal", "causal documents", "documents by batch", "tree", "neighbourhood_2d", "natten_3d", "swin_windows"}) {
    expect_no_spills(ready.masks().at(name));
  }
}

TEST_F(MaskRowsCompile, RandomMasks) {
  heddle::test::RandomMasks random(3);
  for (int i = 0; i < 5; ++i) expect_no_spills(random.draw());
}

// With NVRTC 13.0 the first two spill 10 bytes. Such kernels are taken: no other kernel finds rows.
TEST_F(MaskRowsCompile, MasksThatReadOutside) {
  constexpr int kFewBytes = 64;
  heddle::test::RandomMasks random(21);
  Bindings bindings = random.bindings();
  const Tensor none = Tensor::zeros(DType::i32, {0});
  bindings.captures["none"] = none;
  for (const char* text : heddle::test::kMasksThatReadOutside) {
    EXPECT_LE(compile(parse(text, Symbols(bindings))), kFewBytes) << text;
  }
}

}  // namespace
}  // namespace heddle::gpu
