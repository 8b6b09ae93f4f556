// Mods as tile programs: only steps that depend on row and column are left for each element.
#include "tile_evaluator/tile_lowering.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "heddle/error.h"
#include "heddle/mods.h"

namespace heddle::cpu {
namespace {

const Expr kMinusInfinity = -std::numeric_limits<double>::infinity();

Expr masked(const Expr& mask) { return where(mask, leaf::score(), kMinusInfinity); }
Capture tensor(const std::string& name, DType dtype, int rank) { return Capture(name, dtype, rank); }

const std::vector<Instruction>& steps(const Program& program, Extent extent) {
  return program.steps[static_cast<std::size_t>(extent)];
}
std::size_t steps_per_element(const Expr& e) { return steps(lower(e, true), Extent::tile).size(); }

TEST(TileProgram, DistancesCostOneStepPerElement) {
  EXPECT_EQ(steps_per_element(mods::alibi(tensor("slopes", DType::f32, 1))), 1U);
  EXPECT_EQ(steps_per_element(mods::relative_bias(tensor("table", DType::f32, 2), 128)), 1U);
  EXPECT_EQ(steps_per_element(mods::t5_bias(tensor("table", DType::f32, 2), 32, 128, true)), 1U);
  EXPECT_EQ(steps_per_element(masked(mods::causal())), 1U);
  EXPECT_EQ(steps_per_element(masked(mods::causal_lower_right())), 1U);
  EXPECT_EQ(steps_per_element(masked(mods::sliding_window(256))), 1U);
  EXPECT_EQ(steps_per_element(masked(mods::dilated_window(256, 4))), 1U);
}

TEST(TileProgram, RowsAndColumnsAreNotMaterialised) {
  const Capture doc = tensor("doc", DType::i32, 1);
  EXPECT_EQ(steps_per_element(masked(mods::documents(doc))), 1U);
  EXPECT_EQ(steps_per_element(masked(mods::documents(doc) & mods::causal())), 2U);
  EXPECT_EQ(steps_per_element(masked(mods::block_diffusion(48))), 1U);
  EXPECT_EQ(steps_per_element(mods::softcap(30)), 3U);
  EXPECT_EQ(steps_per_element(leaf::score() * 2.5 + leaf::q_idx()), 1U);
}

TEST(TileProgram, PrintsOperandsWithTheirExtents) {
  const Capture slopes = tensor("slopes", DType::f32, 1);
  EXPECT_EQ(to_string(lower(leaf::score() * param("gain", ExprType::f32) + slopes(leaf::h()) * leaf::kv_idx(), true)),
            "scalar0 = gain\n"
            "scalar1 = h\n"
            "scalar2 = read slopes scalar1\n"
            "column0 = kv_idx\n"
            "column1 = to_f32 column0\n"
            "column2 = mul scalar2, column1\n"
            "result = mul_add score, scalar0, column2\n");
}

TEST(TileProgram, RowsOfATensorAreReadAlongTheColumns) {
  const Capture bias = tensor("bias", DType::bf16, 4);
  const Program program = lower(bias(leaf::b(), leaf::h(), leaf::q_idx() - 3, leaf::kv_idx() + leaf::q_idx()), true);
  ASSERT_EQ(steps(program, Extent::tile).size(), 1U);
  EXPECT_EQ(steps(program, Extent::tile)[0].column_axis, 3);
  // An index that jumps, or two that move, are gathered.
  EXPECT_EQ(steps(lower(bias(0, 0, leaf::q_idx(), leaf::kv_idx() * 2), true), Extent::tile)[0].column_axis, -1);
  EXPECT_EQ(steps(lower(bias(0, leaf::q_idx(), leaf::kv_idx(), leaf::kv_idx()), true), Extent::tile)[0].column_axis,
            -1);
}

TEST(TileProgram, TermsThatCancelLeaveNoExtent) {
  const Expr across = leaf::q_idx() + leaf::kv_idx();
  EXPECT_TRUE(steps(lower(across - leaf::q_idx() < leaf::kv_len(), true), Extent::row).empty());
  const Program column = lower(masked(across - leaf::q_idx() < leaf::kv_len()), true);
  EXPECT_EQ(column.steps[static_cast<std::size_t>(Extent::tile)].size(), 1U);
  EXPECT_EQ(column.slots[static_cast<std::size_t>(Extent::row)], 0);
  // Equal modulo 2^32 for all rows and columns, or for none.
  EXPECT_TRUE(steps(lower(leaf::q_idx() + 1 == leaf::q_idx() + leaf::b(), true), Extent::row).empty());
}

TEST(TileProgram, OrderedComparisonsOfDistancesAreGuarded) {
  const Program guarded = lower(masked(leaf::kv_idx() + 2 <= leaf::q_idx()), true);
  ASSERT_EQ(guarded.guards.size(), 2U);
  EXPECT_EQ(guarded.guards[0].per_row, 0);
  EXPECT_EQ(guarded.guards[0].per_column, 1);
  EXPECT_EQ(guarded.guards[1].per_row, 1);
  EXPECT_EQ(guarded.guards[1].per_column, 0);
  const Program plain = lower(masked(leaf::kv_idx() + 2 <= leaf::q_idx()), false);
  EXPECT_TRUE(plain.guards.empty());
  ASSERT_EQ(steps(plain, Extent::tile).size(), 1U);
  EXPECT_EQ(steps(plain, Extent::tile)[0].code, Code::select_le);
  // A difference wraps alike everywhere, and so does equality.
  EXPECT_TRUE(lower(leaf::kv_idx() - leaf::q_idx() < 5, true).guards.empty());
  EXPECT_TRUE(lower(leaf::kv_idx() == leaf::q_idx(), true).guards.empty());
}

TEST(TileProgram, ParamsAreComputedOnceForAllTiles) {
  const Expr cap = param("cap", ExprType::f32);
  const Program program = lower(leaf::score() * (1.0 / (cap * cap)), true);
  EXPECT_EQ(program.once.size(), 2U);
  EXPECT_TRUE(steps(program, Extent::scalar).empty());
  // A capture's content may change between runs.
  EXPECT_EQ(steps(lower(leaf::score() * tensor("gain", DType::f32, 0)(), true), Extent::scalar).size(), 1U);
}

TEST(TileProgram, PowersOfTwoDivideByShifts) {
  const Expr product = leaf::q_idx() * leaf::kv_idx();
  EXPECT_EQ(steps(lower(floor_div(product, 16), true), Extent::tile).back().code, Code::shift_right);
  EXPECT_EQ(steps(lower(product % 16, true), Extent::tile).back().code, Code::bit_and);
  EXPECT_EQ(steps(lower(product % 12, true), Extent::tile).back().code, Code::op);
  EXPECT_EQ(steps(lower(product % -16, true), Extent::tile).back().code, Code::op);
}

TEST(TileProgram, RegistersAreSharedByLifeTime) {
  Expr e = leaf::score();
  for (int i = 0; i < 50; ++i) e = tanh(e) + leaf::score();
  EXPECT_LE(lower(e, true).slots[static_cast<std::size_t>(Extent::tile)], 3);
}

TEST(TileProgram, RefusesNothing) {
  try {
    lower(Expr(), true);
    FAIL() << "an empty expression was lowered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "an empty expression cannot be evaluated");
  }
}

}  // namespace
}  // namespace heddle::cpu
