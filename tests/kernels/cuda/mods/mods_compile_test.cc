// NVRTC compiles the text of every operation, of the ready-made mods, and of expressions drawn at random.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "backend/gpu/dialect.h"
#include "backend/gpu/mask_rows_text.h"
#include "expr/node.h"
#include "expr/random_expression.h"
#include "expr/simplify.h"
#include "heddle/error.h"
#include "heddle/mods.h"
#include "kernels/cuda/mods/columns_program.h"
#include "kernels/cuda/mods/device_program.h"

namespace heddle::cuda::test {

using device_text::layout_of;

namespace {

using expr::Leaf;
using expr::Op;
using heddle::test::RandomExpressions;

/// A test that needs the compiler. HEDDLE_REQUIRE_NVRTC makes its absence a failure.
class ModsCompile : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = jit::compiler_missing();
    if (missing.empty()) return;
    if (std::getenv("HEDDLE_REQUIRE_NVRTC") != nullptr) FAIL() << missing;
    GTEST_SKIP() << missing;
  }
};

void expect_compiles(const std::vector<Expr>& mods) {
  for (const expr::Precision reals : {expr::Precision::f32, expr::Precision::f64}) {
    DeviceProgram program;
    for (const Expr& mod : mods) program.add(mod, layout_of({mod}, reals));
    const auto cubin = jit::build(program.source());
    EXPECT_FALSE(cubin->bytes.empty());
    EXPECT_EQ(cubin->spill_bytes, 0);
  }
}

/// Each operation of ops.def over leaves, in each type that it takes.
std::vector<Expr> every_operation() {
  const std::array<std::vector<Expr>, 3> leaves = {
      std::vector<Expr>{leaf::score(), to_f32(leaf::kv_idx()), 3.5},
      std::vector<Expr>{leaf::kv_idx(), leaf::q_idx(), leaf::h(), leaf::b(), param("n", ExprType::i32)},
      std::vector<Expr>{leaf::kv_idx() < 3, leaf::q_idx() < 5, param("flag", ExprType::boolean)}};
  std::vector<Expr> all;
  for (int i = 0; i < expr::kOpCount; ++i) {
    const auto op = static_cast<Op>(i);
    if (expr::info(op).arity < 1) continue;
    for (const std::vector<Expr>& operands : leaves) {
      if (operands.size() < static_cast<std::size_t>(expr::info(op).arity)) continue;
      std::vector<Expr> given(operands.begin(), operands.begin() + expr::info(op).arity);
      if (op == Op::where) given = {leaves[2][0], operands[0], operands[1]};
      try {
        all.push_back(expr::build(op, given));
      } catch (const Error&) {  // is no operation on operands of this type
      }
    }
  }
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i64, DType::i32, DType::i16,
        DType::i8, DType::u64, DType::u32, DType::u16, DType::u8, DType::boolean}) {
    const Expr element = Capture("x", dtype, 1)(leaf::kv_idx());
    all.push_back(element);
    all.push_back(Capture("y", dtype, 2).at({leaf::h(), leaf::kv_idx()}, element));
  }
  for (int i = 0; i < expr::kLeafCount; ++i) {
    const auto leaf = static_cast<Leaf>(i);
    if (leaf != Leaf::kv_start)
      all.push_back(expr::make(Op::leaf, ExprType::i32, {}, leaf));  // the planner leaves none
  }
  return all;
}

TEST_F(ModsCompile, EveryOperation) {
  const std::vector<Expr> all = every_operation();
  EXPECT_GT(all.size(), 60U);
  expect_compiles(all);
}

TEST_F(ModsCompile, ReadyMadeMods) {
  const Capture ids("ids", DType::i64, 2), starts("starts", DType::i32, 1), lengths("lengths", DType::i32, 1),
      slopes("slopes", DType::f32, 1), table("table", DType::bf16, 2), enter("enter", DType::i32, 1),
      last("last", DType::i32, 1), before("before", DType::i32, 1), distances("distances", DType::i64, 3);
  std::vector<Expr> simple;
  for (const Expr& mod : {mods::causal(),
                          mods::causal_lower_right(),
                          mods::sliding_window(1024, 16),
                          mods::dilated_window(1024, 4),
                          mods::prefix_lm(100),
                          mods::prefix_lm(lengths(leaf::b())),
                          mods::global_and_window(16, 256),
                          mods::documents(ids),
                          mods::documents_from_starts(starts),
                          mods::neighbourhood_2d(64, 3, 5),
                          mods::tree(enter, last, 100),
                          mods::block_diffusion(128),
                          mods::alibi(slopes),
                          mods::relative_bias(table, 64),
                          mods::t5_bias(table, 32, 128, true),
                          mods::t5_bias(table, 32, 128, false),
                          mods::softcap(30),
                          mods::sinks_and_window(4, 1024),
                          mods::windows_by_head(before),
                          mods::causal_chunks(8192),
                          mods::natten_2d(64, 48, 7, 9),
                          mods::natten_3d(16, 32, 48, 3, 5, 7),
                          mods::sliding_tiles_2d(8, 8, 64, 3, 5),
                          mods::sliding_tiles_3d(6, 8, 8, 384, 3, 5, 5),
                          mods::swin_windows(56, 7, 3),
                          mods::swin_bias(table, 56, 7),
                          mods::block_diffusion_training(4096, 32),
                          mods::graph_bias(distances, table, 20),
                          mods::dropout(0.1, param("seed", ExprType::i32))}) {
    simple.push_back(expr::simplify(plan::by_position(mod, {}), expr::Precision::f32));
  }
  expect_compiles(simple);
}

TEST_F(ModsCompile, ColumnsOfAFragment) { EXPECT_EQ(jit::build(columns_source())->spill_bytes, 0); }

// The kernels that find a mask's rows compute it by intervals and by elements.
TEST_F(ModsCompile, MasksOfRows) {
  const Capture ids("ids", DType::i32, 1);
  const Expr drawn = random_uniform(param("seed", ExprType::i32), leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), x = to_f32(kv) * 0.25;
  const Expr small = Capture("small", DType::u8, 1)(q), wide = Capture("wide", DType::i16, 2)(q, kv);
  const std::array masks = {mods::documents(ids) & mods::causal(),
                            (drawn < 0.5) & (ids(kv) > 0),
                            to_f32(leaf::kv_token()) > Capture("scalar", DType::f32, 0)(),
                            ((small & 36) | (kv ^ 5)) != (q << (kv & 6)),
                            (wide >> (q - kv)) > ~small,
                            (ceil(x) > round(x * 3.0)) | (trunc(x) == sign(x - 4.0)) | isnan(x / x) | isinf(1.0 / x)};
  for (const Expr& mask : masks) {
    const auto cubin =
        jit::build(gpu::cuda_dialect().source("mask_rows", gpu::mask_rows_text(gpu::row_mask(mask)), "sm_90a"));
    EXPECT_FALSE(cubin->bytes.empty()) << print(mask);
    EXPECT_EQ(cubin->spill_bytes, 0) << print(mask);
  }
}

TEST_F(ModsCompile, ExpressionsDrawnAtRandom) {
  RandomExpressions random(7);
  std::vector<Expr> all;
  while (all.size() < 100) {
    const Expr mod = random.draw(16);
    if (symbols_of(mod).captures.size() <= static_cast<std::size_t>(shared::kModCaptures)) all.push_back(mod);
  }
  expect_compiles(all);
}

}  // namespace
}  // namespace heddle::cuda::test
