// In which form the Hopper forward takes a score_mod.
#include "plan/mods/kernel_mods.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/small_float.h"
#include "expr/interpret.h"
#include "expr/node.h"
#include "expr/simplify.h"
#include "families/forward_sm90/forward_sm90.h"
#include "heddle/mods.h"
#include "plan/mods/mod_problem.h"
#include "shared/philox.h"

namespace heddle::test {
namespace {

using plan::KernelMods;
using shared::ScoreForm;

KernelMods mods_of(const Expr& score, const Expr& mask = {}, double scale = 0.125) {
  return plan::kernel_mods(problem_of(score, mask, scale));
}

const Expr kScore = leaf::score();
const Capture kSlopes("slopes", DType::f32, 1), kTable("table", DType::f32, 2), kBias("bias", DType::f32, 3);

TEST(KernelMods, FoldsFactorsIntoTheScale) {
  EXPECT_EQ(mods_of({}).form, ScoreForm::plain);
  EXPECT_EQ(plan::describe_score(mods_of({})), "");
  const KernelMods scaled = mods_of(kScore * 1.5 / 2.0 + 0.0);
  EXPECT_EQ(scaled.form, ScoreForm::plain);
  EXPECT_EQ(scaled.factor, 0.75);
  EXPECT_EQ(plan::describe_score(scaled), "plain: t = 0.75 * score; the factor joins the scale");
}

TEST(KernelMods, TakesTermsInTheirCheapestForm) {
  const KernelMods shifted = mods_of(kScore + kSlopes(leaf::h()) * to_f32(leaf::q_idx()));
  EXPECT_EQ(shifted.form, ScoreForm::shifted);
  EXPECT_FALSE(shifted.descending);
  const KernelMods tilted = mods_of(mods::alibi(kSlopes));
  EXPECT_EQ(tilted.form, ScoreForm::tilted);
  EXPECT_EQ(print(tilted.slope), "slopes[h]");
  const KernelMods distant = mods_of(mods::relative_bias(kTable, 128));
  EXPECT_EQ(distant.form, ScoreForm::distant);
  EXPECT_EQ(distant.flat_from, 128);
  EXPECT_EQ(distant.flat_to, -128);
  EXPECT_EQ(mods_of(mods::t5_bias(kTable, 32, 128, true)).form, ScoreForm::distant);
  const KernelMods added = mods_of(2.0 * kScore + kBias(leaf::h(), leaf::q_idx(), leaf::kv_idx()));
  EXPECT_EQ(added.form, ScoreForm::added);
  EXPECT_EQ(added.factor, 2);
  EXPECT_EQ(mods_of(kScore * kScore).form, ScoreForm::mapped);
}

TEST(KernelMods, SeparatesWhatDependsOnTheKey) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), gate = kTable(leaf::h(), q), pad = kTable(leaf::b(), kv);
  const KernelMods padded = mods_of(2.0 * kScore + pad);
  EXPECT_EQ(padded.form, ScoreForm::plain);
  EXPECT_EQ(padded.factor, 2);
  EXPECT_EQ(print(padded.key_term), "table[b, kv_idx]");
  EXPECT_TRUE(padded.key_factor.empty());
  const KernelMods gated = mods_of(kScore * kSlopes(kv) + gate);
  EXPECT_EQ(gated.form, ScoreForm::shifted);
  EXPECT_EQ(print(gated.key_factor), "slopes[kv_idx]");
  EXPECT_EQ(print(gated.offset), "table[h, q_idx]");
  EXPECT_TRUE(gated.key_term.empty());
  const KernelMods both = mods_of(mods::alibi(kSlopes) + pad);
  EXPECT_EQ(both.form, ScoreForm::tilted);
  EXPECT_EQ(print(both.slope), "slopes[h]");
  EXPECT_EQ(print(both.key_term), "table[b, kv_idx]");
  const KernelMods near = mods_of(mods::relative_bias(kTable, 16) - pad);
  EXPECT_EQ(near.form, ScoreForm::distant);
  EXPECT_EQ(near.flat_from, 16);
  EXPECT_EQ(print(near.key_term), "-table[b, kv_idx]");
  const KernelMods grid = mods_of(
      kScore + pad + kTable((floor_div(q, 10) - floor_div(kv, 10) + 99) * 19 + (q % 10 - kv % 10 + 9), leaf::h()));
  EXPECT_EQ(grid.form, ScoreForm::plain);
  EXPECT_EQ(grid.table_entries, 199 * 19);
  // Which end of the table comes first follows from the order of the sum's terms, which is that of their addresses.
  EXPECT_THAT(print(grid.table_entry), testing::AnyOf("table[kv_idx, h]", "table[3780 - kv_idx, h]"));
  EXPECT_EQ(print(grid.key_term), "table[b, kv_idx]");
  // An element's own term takes all with it, and a factor of the query is none of the key.
  const KernelMods biased = mods_of(kScore + pad + kBias(leaf::h(), q, kv));
  EXPECT_EQ(biased.form, ScoreForm::added);
  EXPECT_FALSE(biased.has_key_numbers());
  EXPECT_EQ(mods_of(kScore * kSlopes(q) + pad).form, ScoreForm::mapped);
  // A term that is linear in the key, or of a distance, has a form without key numbers.
  EXPECT_FALSE(mods_of(mods::alibi(kSlopes)).has_key_numbers());
  EXPECT_FALSE(mods_of(mods::t5_bias(kTable, 32, 128, true)).has_key_numbers());
  // For kernels that have none to compute them.
  const KernelMods left = plan::kernel_mods(problem_of(kScore * kSlopes(kv) + gate), plan::OfKeys::left);
  EXPECT_EQ(left.form, ScoreForm::mapped);
  EXPECT_FALSE(left.has_key_numbers());
}

TEST(KernelMods, SaysWhatDependsOnTheKey) {
  EXPECT_EQ(
      plan::describe_score(mods_of(kScore * kSlopes(leaf::kv_idx()) + kTable(leaf::b(), leaf::kv_idx()))),
      "plain: t = 1 * score; the factor joins the scale; times slopes[kv_idx], which reads no query: computed once "
      "for each key of a block; plus table[b, kv_idx], which reads no query: computed once for each key of a block");
}

TEST(KernelMods, RefusesNumbersOfKeysThatKernelsHaveNoWarpOrRoomFor) {
  const auto attention = [](const Expr& score) {
    problem::AttentionProblem made = problem_of(score);
    made.q_heads = 8;
    made.qk_dim = made.v_dim = 128;
    made.q_dtype = made.k_dtype = made.v_dtype = DType::bf16;
    return made;
  };
  const auto refuses = [](const problem::AttentionProblem& of) {
    return plan::refuses_key_numbers(of, plan::kernel_mods(of));
  };
  const Expr padded = kScore + kTable(leaf::b(), leaf::kv_idx()), of_head = kScore + kTable(leaf::h(), leaf::kv_idx());
  EXPECT_EQ(refuses(attention(padded)), "");
  EXPECT_EQ(refuses(attention(of_head)), "");
  problem::AttentionProblem few = attention(of_head);
  few.q_rows = few.sequences[0].q_len = 16;
  EXPECT_EQ(refuses(few), "packed heads share the numbers of their keys, and these read h");
  few.score_mod = padded;
  EXPECT_EQ(refuses(few), "");
  problem::AttentionProblem paged = attention(padded);
  paged.page_rows = 16;
  EXPECT_EQ(refuses(paged), "");
  paged.q_dtype = paged.k_dtype = paged.v_dtype = DType::e4m3;
  EXPECT_EQ(refuses(paged),
            "of 8 bits in pages one of the producer's idle warps transposes values, and the other gathers");
  EXPECT_EQ(refuses(attention(kScore + kTable(leaf::q_idx() - 2 * leaf::kv_idx() + 1998, 0))), "");
  const Expr entry = kTable(leaf::q_idx() - 2 * leaf::kv_idx() + 1998, 0);
  EXPECT_EQ(refuses(attention(padded + entry)), "");
  EXPECT_EQ(refuses(attention(padded * kSlopes(leaf::kv_idx()) + entry)),
            "a factor, a term and a place in a table are three numbers of a key, and two are read");
  EXPECT_THAT(refuses(attention(kScore + kTable(leaf::q_idx() - 20 * leaf::kv_idx() + 19980, 0))),
              testing::StartsWith("a table of 20980 entries needs "));
}

/// The mods with these kv_starts, whose positions `problem` does not yet know.
KernelMods mods_from(problem::AttentionProblem problem, const std::vector<std::int64_t>& starts) {
  problem.batch = std::ssize(starts);
  problem.sequences.assign(starts.size(), problem.sequences.front());
  for (std::size_t i = 0; i < starts.size(); ++i) problem.sequences[i].kv_start = starts[i];
  return plan::kernel_mods(problem);
}

// Kernels count keys from 0: what is read as kv_idx says where from.
TEST(KernelMods, WritesKvStartAsAValue) {
  using Form = plan::KvStart::Form;
  const Expr by_start = kScore + to_f32(leaf::kv_start());
  EXPECT_EQ(mods_of(by_start).form, ScoreForm::plain);  // 0 where there is none
  EXPECT_EQ(print(mods_of({}, mods::causal_lower_right()).mask), "kv_idx - kv_len <= q_idx - q_len - q_start");
  const KernelMods same = mods_from(problem_of(by_start), {64, 64}), other = mods_from(problem_of(by_start), {64, 0});
  EXPECT_EQ(same.kv_start.form, Form::param);
  EXPECT_EQ(print(same.offset), "f32(min(max(kv_start, -8388608), 8388608))");
  EXPECT_EQ(other.kv_start.form, Form::capture);
  EXPECT_EQ(print(other.offset), "f32(min(max(kv_start[b], -8388608), 8388608))");
  // A new value compiles nothing.
  EXPECT_TRUE(heddle::same(mods_from(problem_of(by_start), {128, 128}).offset, same.offset));
  // Nothing that knows no key's position needs it.
  EXPECT_EQ(mods_from(problem_of(kScore + to_f32(leaf::q_idx() + leaf::kv_token())), {64, 0}).kv_start.form,
            Form::zero);
  EXPECT_EQ(mods_from(problem_of({}, mods::causal()), {0, 0}).kv_start.form, Form::zero);
  const KernelMods masked = mods_from(problem_of({}, mods::causal()), {64, 0});
  EXPECT_EQ(masked.kv_start.form, Form::capture);
  EXPECT_EQ(masked.mask_form, shared::MaskForm::direct);
  EXPECT_TRUE(masked.mask.node()->uses.has(expr::Leaf::b));
}

// A proof about a distance holds while positions are far from the ends of i32 and, in f32, exact.
TEST(KernelMods, KeepsFormsUnderKvStart) {
  for (const std::vector<std::int64_t>& starts : {std::vector<std::int64_t>{1000, 1000}, {1000, 0}}) {
    EXPECT_EQ(mods_from(problem_of(mods::alibi(kSlopes)), starts).form, ScoreForm::tilted);
    EXPECT_EQ(mods_from(problem_of(mods::relative_bias(kTable, 128)), starts).form, ScoreForm::distant);
    const KernelMods window = mods_from(problem_of({}, mods::sliding_window(100, 50)), starts);
    EXPECT_EQ(window.mask_form, shared::MaskForm::distance);
    EXPECT_FALSE(window.mask_most.empty());
  }
  constexpr std::int64_t kPastF32 = 1 << 24, kNearWrapping = std::int64_t{1} << 30;
  EXPECT_EQ(mods_from(problem_of(mods::alibi(kSlopes)), {kPastF32}).form, ScoreForm::distant);
  EXPECT_FALSE(mods_from(problem_of({}, mods::sliding_window(100, 50)), {kPastF32}).mask_most.empty());
  const KernelMods near = mods_from(problem_of({}, mods::sliding_window(100, 50)), {kNearWrapping});
  EXPECT_EQ(near.mask_form, shared::MaskForm::distance);  // sums that wrap are still of the distance
  EXPECT_TRUE(near.mask_most.empty());
}

TEST(KernelMods, SaysWhyABiasUnderKvStartIsNotStreamed) {
  const Expr biased = kScore + kBias(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  EXPECT_TRUE(mods_of(biased).streamed.has_value());
  const KernelMods shifted = mods_from(problem_of(biased), {64, 64});
  EXPECT_EQ(shifted.form, ScoreForm::added);
  EXPECT_FALSE(shifted.streamed.has_value());
  EXPECT_THAT(
      plan::describe_score(shifted),
      testing::EndsWith("; capture 'bias' is read element by element: kv_start shifts the columns that its tiles "
                        "have"));
}

// Values that the device alone has: any i32, which proves little.
TEST(KernelMods, TakesKvStartsFromTheDevice) {
  problem::AttentionProblem problem = problem_of(kScore + to_f32(leaf::kv_start()), mods::sliding_window(100, 50));
  problem.device_lengths = problem.device_kv_starts = true;
  problem.kv_start_dtype = DType::i64;
  const KernelMods mods = plan::kernel_mods(problem);
  EXPECT_EQ(print(mods.offset), "f32(kv_start[b])");
  EXPECT_EQ(mods.kv_start.dtype, DType::i64);
  EXPECT_EQ(mods.mask_form, shared::MaskForm::distance);
  EXPECT_TRUE(mods.mask_most.empty());
}

// Their largest t may come from the smallest product.
TEST(KernelMods, MapsScoresThatDoNotGrowWithTheProduct) {
  EXPECT_EQ(mods_of(-kScore).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of({}, {}, -1).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of({}, {}, 0).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of(20.0 * tanh(kScore / -20.0)).form, ScoreForm::mapped);
  EXPECT_EQ(mods_of(mods::softcap(20), {}, -1).form, ScoreForm::mapped);
}

// A row's largest t then comes early, so the exponents' reference stays.
TEST(KernelMods, DescendsWhereTheTermMayGrowWithTheKey) {
  EXPECT_TRUE(mods_of(mods::alibi(kSlopes)).descending);
  EXPECT_TRUE(mods_of(kScore + to_f32(leaf::kv_idx() - leaf::q_idx())).descending);
  EXPECT_FALSE(mods_of(kScore + to_f32(leaf::q_idx() - leaf::kv_idx())).descending);
  EXPECT_FALSE(mods_of(mods::relative_bias(kTable, 8)).descending);
  EXPECT_TRUE(mods_of(mods::relative_bias(kTable, 8), mods::causal()).descending);
  EXPECT_FALSE(mods_of({}, mods::causal()).descending);
}

TEST(KernelMods, TakesMasksAsBitsWhereTheyAreMoreThanAComparison) {
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

TEST(KernelMods, PartsAMaskByWhatItDependsOn) {
  const Capture ids("ids", DType::i32, 1);
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const KernelMods mods = mods_of({}, mods::documents(ids) && mods::causal() && q - kv <= 50);
  EXPECT_EQ(mods.mask_form, shared::MaskForm::both);
  EXPECT_FALSE(mods.mask_distance.node()->uses.has(expr::Leaf::b));
  EXPECT_EQ(print(mods.mask_distance).find("ids"), std::string::npos) << print(mods.mask_distance);
  EXPECT_EQ(print(mods.mask_rest), print(expr::simplify(mods::documents(ids), expr::Precision::f32)));
  EXPECT_EQ(mods.mask_repeats_to, -51);
  EXPECT_EQ(mods_of({}, q >= kv && (q - kv) % 4 == 0).mask_repeats_to, 0);
  EXPECT_EQ(mods_of({}, (q - kv) % 4 == 0 && (q - kv) % 3 != 0).mask_repeats_to, -999);
  const KernelMods everywhere = mods_of({}, (q - kv) % 4 == 0 && (q - kv) % 8 != 4);
  EXPECT_EQ(everywhere.mask_form, shared::MaskForm::distance);
  EXPECT_EQ(everywhere.mask_repeats_to, 999);
}

TEST(KernelMods, KnowsARangeOfDistances) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const auto range = [&](const Expr& mask) {
    const KernelMods mods = mods_of({}, mask);
    return mods.mask_most.empty() ? std::string("none")
                                  : fmt::format("{} to {}", print(mods.mask_least), print(mods.mask_most));
  };
  EXPECT_EQ(range(mods::sliding_window(100)), "-100 to 0");
  EXPECT_EQ(range(q >= kv && q - kv < 100), "-99 to 0");
  EXPECT_EQ(range(2 * q - kv > q + 3 && kv > q - 50 && kv - q >= -20), "-20 to -4");
  EXPECT_EQ(range(mods::causal() && mods::documents(Capture("ids", DType::i32, 1))), "-1073741824 to 0");
  for (const Expr& other : {q >= kv && (q - kv) % 4 == 0, q >= kv && q - kv != 3, mods::dilated_window(100, 7),
                            2 * q >= 2 * kv && q - kv < 30, mods::causal()}) {
    EXPECT_EQ(range(other), "none") << print(other);
  }
}

TEST(KernelMods, KnowsACap) {
  const KernelMods capped = mods_of(mods::softcap(20));
  EXPECT_EQ(capped.form, ScoreForm::plain);
  EXPECT_EQ(capped.cap, 20);
  EXPECT_DOUBLE_EQ(capped.factor, 0.05);
  EXPECT_EQ(plan::describe_score(capped),
            "capped: t = 20 * tanh(0.05 * score); a polynomial while all scores of a warp are small");
  const KernelMods shifted = mods_of(mods::softcap(20) + kSlopes(leaf::h()));
  EXPECT_EQ(shifted.form, ScoreForm::shifted);
  EXPECT_EQ(shifted.cap, 20);
  // Its form in the exponents is not exact enough for a weight that is t itself.
  problem::AttentionProblem weighs = problem_of(mods::softcap(20));
  weighs.normalizer = Normalizer::none;
  EXPECT_EQ(plan::kernel_mods(weighs).form, ScoreForm::mapped);
  weighs.normalizer = Normalizer::sigmoid;
  EXPECT_EQ(plan::kernel_mods(weighs).cap, 20);
  for (const Expr& other : {mods::softcap(20) + kScore, mods::softcap(20) * tanh(kScore), tanh(kScore + 1.0),
                            mods::softcap(20) + to_f32(leaf::kv_idx()), -mods::softcap(20)}) {
    EXPECT_EQ(mods_of(other).form, ScoreForm::mapped) << print(other);
    EXPECT_EQ(mods_of(other).cap, 0) << print(other);
  }
}

TEST(KernelMods, CapsByASeriesWhileProductsAreSmall) {
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

const Expr kSeed = param("seed", ExprType::i32), kP = param("p", ExprType::f32), kFactor = param("c", ExprType::f32);
const Expr kDraw = random_uniform(kSeed, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());

}  // namespace
}  // namespace heddle::test
