// In which form the Hopper forward takes a score_mod.
#include "plan/families/forward_sm90_mods.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "expr/node.h"
#include "expr/simplify.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

using plan::ForwardSm90Mods;
using shared::ScoreForm;

problem::AttentionProblem problem_of(const Expr& score, const Expr& mask = {}, double scale = 0.125) {
  problem::AttentionProblem problem;
  problem.batch = problem.q_heads = problem.kv_heads = 1;
  problem.q_rows = problem.kv_rows = 1000;
  problem.sequences.resize(1);
  problem.sequences[0].q_len = problem.sequences[0].kv_len = 1000;
  problem.scale = scale;
  problem.score_mod = score;
  problem.mask_mod = mask;
  return problem;
}
ForwardSm90Mods mods_of(const Expr& score, const Expr& mask = {}, double scale = 0.125) {
  return plan::forward_sm90_mods(problem_of(score, mask, scale));
}

const Expr kScore = leaf::score();
const Capture kSlopes("slopes", DType::f32, 1), kTable("table", DType::f32, 2), kBias("bias", DType::f32, 3);

TEST(ForwardSm90Mods, FoldsFactorsIntoTheScale) {
  EXPECT_EQ(mods_of({}).form, ScoreForm::plain);
  EXPECT_EQ(to_string(mods_of({})), "");
  const ForwardSm90Mods scaled = mods_of(kScore * 1.5 / 2.0 + 0.0);
  EXPECT_EQ(scaled.form, ScoreForm::plain);
  EXPECT_EQ(scaled.factor, 0.75);
  EXPECT_EQ(to_string(scaled), "t = 0.75 * score");
}

TEST(ForwardSm90Mods, TakesTermsInTheirCheapestForm) {
  const ForwardSm90Mods shifted = mods_of(kScore + kSlopes(leaf::h()) * to_f32(leaf::q_idx()));
  EXPECT_EQ(shifted.form, ScoreForm::shifted);
  EXPECT_FALSE(shifted.descending);
  const ForwardSm90Mods tilted = mods_of(mods::alibi(kSlopes));
  EXPECT_EQ(tilted.form, ScoreForm::tilted);
  EXPECT_EQ(print(tilted.slope), "slopes[h]");
  const ForwardSm90Mods distant = mods_of(mods::relative_bias(kTable, 128));
  EXPECT_EQ(distant.form, ScoreForm::distant);
  EXPECT_EQ(distant.flat_from, 128);
  EXPECT_EQ(distant.flat_to, -128);
  EXPECT_EQ(mods_of(mods::t5_bias(kTable, 32, 128, true)).form, ScoreForm::distant);
  const ForwardSm90Mods added = mods_of(2.0 * kScore + kBias(leaf::h(), leaf::q_idx(), leaf::kv_idx()));
  EXPECT_EQ(added.form, ScoreForm::added);
  EXPECT_EQ(added.factor, 2);
  EXPECT_EQ(mods_of(kScore * kScore).form, ScoreForm::mapped);
}

// Their largest t may come from the smallest product.
TEST(ForwardSm90Mods, MapsScoresThatDoNotGrowWithTheProduct) {
  EXPECT_EQ(mods_of(-kScore).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of({}, {}, -1).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of({}, {}, 0).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of(20.0 * tanh(kScore / -20.0)).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of(mods::softcap(20), {}, -1).form, ScoreForm::mapped);
}

// So that a row's largest t comes early: the exponents' reference then stays.
TEST(ForwardSm90Mods, DescendsWhereTheTermMayGrowWithTheKey) {
  EXPECT_TRUE(mods_of(mods::alibi(kSlopes)).descending);
  EXPECT_TRUE(mods_of(kScore + to_f32(leaf::kv_idx() - leaf::q_idx())).descending);
  EXPECT_FALSE(mods_of(kScore + to_f32(leaf::q_idx() - leaf::kv_idx())).descending);
  EXPECT_FALSE(mods_of(mods::relative_bias(kTable, 8)).descending);
  EXPECT_TRUE(mods_of(mods::relative_bias(kTable, 8), mods::causal()).descending);
  EXPECT_FALSE(mods_of({}, mods::causal()).descending);
}

TEST(ForwardSm90Mods, TakesMasksAsBitsWhereTheyAreMoreThanAComparison) {
  using shared::MaskForm;
  const Capture ids("ids", DType::i32, 1), keep("keep", DType::boolean, 2);
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const auto form = [](const Expr& mask) { return mods_of({}, mask).mask_form; };
  for (const Expr& plain : {Expr(), mods::causal(), q - kv <= 30, mods::prefix_lm(100), Expr(false),
                            mods::causal() && kv < 70, kv % 4 == q % 4, mods::prefix_lm(ids(leaf::b()))}) {
    EXPECT_EQ(form(plain), MaskForm::direct);
  }
  EXPECT_EQ(form(mods::sliding_window(100)), MaskForm::distance);
  EXPECT_EQ(form(mods::dilated_window(100, 7)), MaskForm::distance);
  EXPECT_EQ(form(mods::documents(ids)), MaskForm::values);
  EXPECT_EQ(form(keep(q, kv)), MaskForm::values);
  EXPECT_EQ(form(kv % (leaf::h() + 2) != 0), MaskForm::values);
  EXPECT_EQ(form(mods::documents(ids) || mods::causal()), MaskForm::values);
}

TEST(ForwardSm90Mods, PartsAMaskByWhatItDependsOn) {
  const Capture ids("ids", DType::i32, 1);
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const ForwardSm90Mods mods = mods_of({}, mods::documents(ids) && mods::causal() && q - kv <= 50);
  EXPECT_EQ(mods.mask_form, shared::MaskForm::both);
  EXPECT_FALSE(mods.mask_distance.node()->uses.has(expr::Leaf::b));
  EXPECT_EQ(print(mods.mask_distance).find("ids"), std::string::npos) << print(mods.mask_distance);
  EXPECT_EQ(print(mods.mask_rest), print(expr::simplify(mods::documents(ids), expr::Precision::f32)));
  EXPECT_EQ(mods.mask_repeats_to, -51);
  EXPECT_EQ(mods_of({}, q >= kv && (q - kv) % 4 == 0).mask_repeats_to, 0);
  EXPECT_EQ(mods_of({}, (q - kv) % 4 == 0 && (q - kv) % 3 != 0).mask_repeats_to, -999);
  const ForwardSm90Mods everywhere = mods_of({}, (q - kv) % 4 == 0 && (q - kv) % 8 != 4);
  EXPECT_EQ(everywhere.mask_form, shared::MaskForm::distance);
  EXPECT_EQ(everywhere.mask_repeats_to, 999);
}

TEST(ForwardSm90Mods, KnowsACap) {
  const ForwardSm90Mods capped = mods_of(mods::softcap(20));
  EXPECT_EQ(capped.form, ScoreForm::plain);
  EXPECT_EQ(capped.cap, 20);
  EXPECT_DOUBLE_EQ(capped.factor, 0.05);
  EXPECT_EQ(to_string(capped), "t = 20 * tanh(0.05 * score)");
  const ForwardSm90Mods shifted = mods_of(mods::softcap(20) + kSlopes(leaf::h()));
  EXPECT_EQ(shifted.form, ScoreForm::shifted);
  EXPECT_EQ(shifted.cap, 20);
  for (const Expr& other : {mods::softcap(20) + kScore, mods::softcap(20) * tanh(kScore), tanh(kScore + 1.0),
                            mods::softcap(20) + to_f32(leaf::kv_idx()), -mods::softcap(20)}) {
    EXPECT_EQ(mods_of(other).form, ScoreForm::mapped) << print(other);
    EXPECT_EQ(mods_of(other).cap, 0) << print(other);
  }
}

TEST(ForwardSm90Mods, CapsByASeriesWhileProductsAreSmall) {
  const double scale = 0.125;
  const plan::CapSeries series = plan::cap_series(mods_of(mods::softcap(20)), scale);
  EXPECT_NEAR(series.limit * scale, 6.6, 1e-9);
  for (int i = -1000; i <= 1000; ++i) {
    const double x = i * 1e-3 * series.limit, u = x * x;
    const double t = std::log2(std::exp(20 * std::tanh(x * scale / 20)));
    const double* c = series.coefficients;
    EXPECT_NEAR(x * (c[0] + u * (c[1] + u * c[2])), t, 20 * std::log2(std::exp(1)) * 7e-7);
    EXPECT_NEAR(series.outside * std::tanh(series.inside * x), t, 1e-9);
  }
}

}  // namespace
}  // namespace heddle::test
