// Which mods read positions by granules, and in which forms Hopper's kernels take them.
#include "plan/mods/places.h"

#include <gtest/gtest.h>

#include "expr/node.h"
#include "heddle/mods.h"
#include "plan/mods/backward_mods.h"
#include "plan/mods/kernel_mods.h"

namespace heddle::test {
namespace {

using plan::KernelMods;
using plan::OfKeys;
using plan::OfPlaces;
using shared::MaskForm;
using shared::ScoreForm;

const Capture kQueries("q_granules", DType::i32, 1), kKeys("kv_granules", DType::i32, 1);
const Capture kHeadSlopes("slopes", DType::f32, 1), kBuckets("table", DType::f32, 2), kDocuments("ids", DType::i32, 1);

problem::AttentionProblem problem_with(const Expr& score, const Expr& mask = {}, const Expr& weight = {}) {
  problem::AttentionProblem problem;
  problem.batch = problem.q_heads = problem.kv_heads = 1;
  problem.q_rows = problem.kv_rows = 4096;
  problem.sequences = {{.q_len = 4096, .kv_len = 4096}};
  problem.scale = 0.125;
  problem.score_mod = score;
  problem.mask_mod = mask;
  problem.weight_mod = weight;
  return problem;
}
Expr in_granules(const Expr& mod, std::int64_t rows = 128, std::int64_t longest = 1 << 20) {
  return mods::by_granules(mod, kQueries, kKeys, rows, longest);
}
KernelMods native(const problem::AttentionProblem& problem) {
  return plan::kernel_mods(problem, OfKeys::separated, OfPlaces::native);
}

TEST(Places, KeepTheFormsThatModsHaveOverOnePiece) {
  const Expr draw = random_uniform(param("seed", ExprType::i32), leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const auto problem =
      problem_with(in_granules(mods::alibi(kHeadSlopes)), in_granules(mods::causal() && mods::documents(kDocuments)),
                   in_granules(where(draw < 0.1, 0.0, 1.25)));
  const KernelMods mods = native(problem), plain = plan::kernel_mods(problem_with(
                                               mods::alibi(kHeadSlopes), mods::causal() && mods::documents(kDocuments),
                                               where(draw < 0.1, 0.0, 1.25)));
  EXPECT_EQ(mods.form, ScoreForm::tilted);
  EXPECT_TRUE(same(mods.slope, plain.slope));
  EXPECT_EQ(mods.mask_form, MaskForm::both);
  EXPECT_TRUE(same(mods.mask, plain.mask));
  EXPECT_FALSE(same(mods.stored_mask(), plain.mask));
  EXPECT_TRUE(mods.drops.has_value());
  EXPECT_EQ(mods.places.query_rows, 128);
  EXPECT_EQ(mods.places.key_rows, 128);
  EXPECT_EQ(plan::describe_places(mods.places), "queries by granules of 128 rows, keys by granules of 128 rows");
  EXPECT_EQ(native(problem_with(in_granules(mods::t5_bias(kBuckets, 32, 128, true)))).form, ScoreForm::distant);
  EXPECT_EQ(native(problem_with({}, in_granules(mods::sliding_window(100)))).mask_form, MaskForm::distance);
  const KernelMods keyed = native(problem_with(in_granules(leaf::score() + kHeadSlopes(leaf::kv_idx()))));
  EXPECT_EQ(print(keyed.key_term), "slopes[kv_idx]");
  // A tile's table is of rows that are neighbours.
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr grid = kBuckets((q % 10 - kv % 10 + 9) * 19, leaf::h());
  ASSERT_GT(plan::kernel_mods(problem_with(leaf::score() + grid)).table_entries, 0);
  EXPECT_EQ(native(problem_with(in_granules(leaf::score() + grid))).table_entries, 0);
}

TEST(Places, AreLeftToModsUnlessAskedFor) {
  const auto problem = problem_with(in_granules(mods::alibi(kHeadSlopes)), in_granules(mods::causal()));
  const KernelMods left = plan::kernel_mods(problem);
  EXPECT_FALSE(left.places.any());
  EXPECT_EQ(left.form, ScoreForm::added);
  EXPECT_EQ(plan::backward_mods(problem).places.any(), false);
  const plan::BackwardMods backward = plan::backward_mods(problem, OfPlaces::native);
  EXPECT_TRUE(same(backward.mask, plan::kernel_mods(problem_with({}, mods::causal())).mask));
  EXPECT_TRUE(backward.places.any());
}

TEST(Places, MappedScoresAndTheirDerivativesReadPositions) {
  const Expr capped = 20.0 * tanh((leaf::score() + to_f32(leaf::kv_idx() - leaf::q_idx())) / 20.0);
  const plan::BackwardMods mods = plan::backward_mods(problem_with(in_granules(capped)), OfPlaces::native),
                           plain = plan::backward_mods(problem_with(capped));
  EXPECT_EQ(mods.form, ScoreForm::mapped);
  EXPECT_TRUE(same(mods.score, plain.score));
  EXPECT_TRUE(same(mods.derivative, plain.derivative));
}

// A mod as heddle.torch.context_parallel writes it for a group of heads (_context_positions.py).
TEST(Places, AreFoundInTheTextOfContextParallel) {
  Symbols symbols;
  symbols.params = {{"_first_head", ExprType::i32}};
  symbols.captures = {{"slopes", {DType::f32, 1}}, {"_q_granules", {DType::i32, 1}}, {"_kv_granules", {DType::i32, 1}}};
  const std::string query = "(min(max(_q_granules[q_idx // 128], 0), 65535) * 128 + q_idx % 128)",
                    key = "(min(max(_kv_granules[kv_idx // 128], 0), 65535) * 128 + kv_idx % 128)";
  const KernelMods mods =
      native(problem_with(parse("score + slopes[(h + _first_head)] * f32(" + key + " - " + query + ")", symbols),
                          parse(query + " >= " + key, symbols)));
  EXPECT_EQ(mods.form, ScoreForm::tilted);
  EXPECT_EQ(print(mods.slope), "slopes[h + _first_head]");
  EXPECT_EQ(print(mods.mask), print(plan::kernel_mods(problem_with({}, mods::causal())).mask));
  EXPECT_EQ(mods.places.query_rows, 128);
  EXPECT_EQ(mods.places.key_rows, 128);
}

// One side may be in one piece.
TEST(Places, AreFoundSideBySide) {
  const Expr position = min(max(kKeys(floor_div(leaf::kv_idx(), 256)), 0), 1000) * 256 + leaf::kv_idx() % 256;
  const plan::Places places = plan::places_of(problem_with({}, position <= leaf::q_idx()));
  EXPECT_TRUE(places.query.empty());
  EXPECT_TRUE(same(places.key, position));
  EXPECT_EQ(places.key_rows, 256);
  EXPECT_EQ(plan::describe_places(places), "keys by granules of 256 rows");
}

TEST(Places, OthersAreLeft) {
  const auto any = [](const problem::AttentionProblem& problem) { return plan::places_of(problem).any(); };
  const Expr causal = in_granules(mods::causal());
  ASSERT_TRUE(any(problem_with({}, causal)));
  EXPECT_FALSE(any(problem_with({}, in_granules(mods::causal(), 96)))) << "no multiple of 64";
  EXPECT_FALSE(any(problem_with({}, causal && leaf::q_idx() % 2 == leaf::kv_idx() % 2))) << "rows are read beside";
  EXPECT_FALSE(any(problem_with({}, causal && in_granules(mods::causal(), 256)))) << "two granules";
  EXPECT_FALSE(any(problem_with({}, causal && leaf::q_token() >= leaf::kv_token())));
  const Expr by_head = Capture("of_head", DType::i32, 2)(leaf::h(), floor_div(leaf::kv_idx(), 128));
  EXPECT_FALSE(any(problem_with({}, by_head * 128 + leaf::kv_idx() % 128 <= leaf::q_idx())));
  const Expr by_row = kKeys(floor_div(leaf::kv_idx(), 64));
  EXPECT_FALSE(any(problem_with({}, by_row * 128 + leaf::kv_idx() % 128 <= leaf::q_idx())));
  problem::AttentionProblem moved = problem_with({}, causal);
  moved.sequences[0].q_start = 64;
  EXPECT_TRUE(plan::places_of(moved).query.empty());
  EXPECT_FALSE(plan::places_of(moved).key.empty());
  moved.batch_invariant = true;
  EXPECT_FALSE(any(moved));
}

// Positions that f32 may not hold have no tilt.
TEST(Places, FarPositionsLoseTheTilt) {
  EXPECT_EQ(native(problem_with(in_granules(mods::alibi(kHeadSlopes), 128, 1 << 23))).form, ScoreForm::tilted);
  EXPECT_NE(native(problem_with(in_granules(mods::alibi(kHeadSlopes), 128, 1 << 27))).form, ScoreForm::tilted);
  const Expr by_key = leaf::score() + kHeadSlopes(leaf::h()) * to_f32(leaf::kv_idx());
  EXPECT_EQ(native(problem_with(in_granules(by_key, 128, 1 << 23))).form, ScoreForm::tilted);
  EXPECT_NE(native(problem_with(in_granules(by_key, 128, 1 << 27))).form, ScoreForm::tilted);
}

}  // namespace
}  // namespace heddle::test
