// In which form the Hopper forward takes a weight_mod: dropped by draws, or multiplied.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "expr/interpret.h"
#include "families/forward_sm90/forward_sm90.h"
#include "heddle/mods.h"
#include "plan/mods/kernel_mods.h"
#include "plan/mods/mod_problem.h"
#include "shared/philox.h"

namespace heddle::test {
namespace {

using plan::KernelMods;

KernelMods weighing(const Expr& weight) {
  problem::AttentionProblem problem = problem_of({});
  problem.weight_mod = weight;
  return plan::kernel_mods(problem);
}
bool drops(const Expr& weight) { return weighing(weight).drops.has_value(); }

double value_of(const Expr& e, const Bindings& bindings) {
  const expr::Value value = expr::Interpreter(e, bindings, expr::Precision::f32)({});
  return std::holds_alternative<double>(value) ? std::get<double>(value) : std::get<std::int32_t>(value);
}

/// Which of the 2^15 draws a kernel keeps by that threshold.
bool kept_by(int threshold, int k) { return threshold < 0 ? k < -1 - threshold : k >= threshold; }

struct Spelling {
  Expr weight;
  bool (*keeps)(float draw, float p);
};
std::vector<Spelling> spellings(const Expr& p) {
  const auto lt = [](float d, float x) { return d < x; };
  const auto le = [](float d, float x) { return d <= x; };
  const auto gt = [](float d, float x) { return d > x; };
  const auto ge = [](float d, float x) { return d >= x; };
  const auto not_lt = [](float d, float x) { return !(d < x); };
  const auto not_le = [](float d, float x) { return !(d <= x); };
  const auto not_gt = [](float d, float x) { return !(d > x); };
  const auto not_ge = [](float d, float x) { return !(d >= x); };
  return {{where(kDraw < p, kFactor, 0.0), lt},         {where(kDraw <= p, kFactor, 0.0), le},
          {where(kDraw > p, kFactor, 0.0), gt},         {where(kDraw >= p, kFactor, 0.0), ge},
          {where(p > kDraw, kFactor, 0.0), lt},         {where(p >= kDraw, kFactor, 0.0), le},
          {where(p < kDraw, kFactor, 0.0), gt},         {where(p <= kDraw, kFactor, 0.0), ge},
          {where(kDraw < p, 0.0, kFactor), not_lt},     {where(kDraw <= p, -0.0, kFactor), not_le},
          {where(kDraw > p, 0.0, kFactor), not_gt},     {where(kDraw >= p, 0.0, kFactor), not_ge},
          {where(!(kDraw >= p), kFactor, 0.0), not_ge}, {where(!(p < kDraw), 0.0, kFactor), gt}};
}

// The threshold keeps exactly the draws that the comparison keeps, of any p.
TEST(KernelWeights, DropsByTheSameDraws) {
  const float unit = 0x1p-15F, inf = std::numeric_limits<float>::infinity();
  std::vector<float> ps = {0,    -0.0F, unit,   0.1F,    0.5F,  0x1.8p-16F, 0x1.fp-1F, 1 - unit,     1,
                           1.5F, -0.3F, 1e-40F, -1e-40F, 3e38F, inf,        -inf,      std::nanf("")};
  for (const float x : {unit, 0.25F, 0.5F, 31744 * unit, 31745 * unit, 1 - unit, 1.0F}) {
    ps.push_back(std::nextafter(x, -1.0F));
    ps.push_back(std::nextafter(x, 2.0F));
  }
  const auto compare = [](const Spelling& spelling, float p, const Bindings& bindings) {
    SCOPED_TRACE(print(spelling.weight) + ", p = " + std::to_string(p));
    const KernelMods mods = weighing(spelling.weight);
    ASSERT_TRUE(mods.drops);
    EXPECT_EQ(print(mods.drops->seed), "seed");
    const int threshold = static_cast<int>(value_of(mods.drops->threshold, bindings));
    EXPECT_TRUE(threshold < 0 ? -1 - threshold <= 32768 : threshold <= 32768);
    for (int k = 0; k < 32768; ++k) {
      const float draw = shared::random_uniform_value(static_cast<unsigned>(k));
      ASSERT_EQ(kept_by(threshold, k), spelling.keeps(draw, p)) << k;
    }
  };
  for (const float p : ps) {
    const Bindings bindings{.captures = {}, .params = {{"p", double{p}}}};
    for (const Spelling& spelling : spellings(kP)) compare(spelling, p, bindings);
  }
  for (const double p : {0.1, 0.5 + 1e-12, 0.5 - 1e-12, 1.0, 0.97}) {
    for (const Spelling& spelling : spellings(p)) compare(spelling, static_cast<float>(p), {});
  }
}

TEST(KernelWeights, KnowsWhatDropsAndWhatDoesNot) {
  const KernelMods dropout = weighing(mods::dropout(0.1, kSeed));
  ASSERT_TRUE(dropout.drops);
  EXPECT_EQ(value_of(dropout.drops->threshold, {}), 3277);
  EXPECT_FLOAT_EQ(static_cast<float>(value_of(dropout.drops->kept, {})), 1 / 0.9F);
  const Capture rates("rates", DType::f32, 1);
  EXPECT_TRUE(drops(where(kDraw < rates(leaf::h()), 0.0, 1.0 / (1.0 - rates(leaf::h())))));
  EXPECT_TRUE(drops(to_f32(kDraw >= kP)));
  // Only sums of weights tell of NaN and infinities among those that are dropped.
  problem::AttentionProblem weighs = problem_of({});
  weighs.weight_mod = to_f32(kDraw >= kP);
  weighs.normalizer = Normalizer::sigmoid;
  EXPECT_TRUE(plan::kernel_mods(weighs).drops);
  weighs.normalizer = Normalizer::none;
  EXPECT_FALSE(plan::kernel_mods(weighs).drops);
  EXPECT_TRUE(drops(where(kDraw >= kP, 1.0, 0.0) * 2.0));
  EXPECT_TRUE(drops(3.0 * where(kDraw >= kP, kFactor, 0.0)));
  EXPECT_TRUE(drops(where(kDraw >= kP, kFactor, 0.0) / 4.0));
  const KernelMods halved = weighing(where(kDraw >= kP, kFactor, 0.0) / 4.0);
  EXPECT_EQ(value_of(halved.drops->kept, {.captures = {}, .params = {{"c", 6.0}}}), 1.5);

  const double inf = std::numeric_limits<double>::infinity();
  for (const Expr& other :
       {Expr(0.5), kDraw, where(kDraw < 0.1, 0.5, 2.0), where(kDraw < 0.1, kDraw, 0.0),
        where(kDraw < 0.1, to_f32(leaf::q_idx()), 0.0), where(kDraw < to_f32(leaf::kv_idx()), 1.0, 0.0),
        where(kDraw == 0.5, 1.0, 0.0), where((kDraw < 0.5) & (kDraw > 0.1), 1.0, 0.0), where(kDraw < kP, inf, 0.0),
        where(kDraw < kP, NAN, 0.0), where(kDraw < kP, 1.0, 0.0) * kFactor, where(kDraw < kP, 1.0, 0.0) / kFactor,
        2.0 / where(kDraw < kP, 1.0, 0.0),
        where(random_uniform(leaf::kv_idx(), leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()) < 0.5, 1.0, 0.0),
        where(random_uniform(1, leaf::h(), leaf::b(), leaf::q_idx(), leaf::kv_idx()) < 0.5, 1.0, 0.0),
        where(random_uniform(1, leaf::b(), leaf::h(), leaf::kv_idx(), leaf::q_idx()) < 0.5, 1.0, 0.0),
        where(random_uniform(1, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx() + 1) < 0.5, 1.0, 0.0)}) {
    EXPECT_FALSE(drops(other)) << print(other);
  }
}

// A kernel compares two draws as f16 numbers: k >= T, for T up to f16's infinity; NaN counts as larger.
TEST(KernelWeights, DrawsOrderAsF16) {
  const auto number = [](int bits) { return base::widen<base::kF16>(static_cast<std::uint32_t>(bits)); };
  for (int threshold = 0; threshold <= 0x7C00; threshold += threshold < 2000 || threshold > 0x7B00 ? 1 : 97) {
    for (int k = 0; k < 32768; k += k < 2100 || k > 0x7B00 ? 1 : 13) {
      ASSERT_EQ(!(number(k) < number(threshold)), k >= threshold) << k << " " << threshold;
    }
  }
}

TEST(KernelWeights, ConfiguresKernelsForTheirWeights) {
  const shared::ForwardSm90Config two = {.qk_dim = 64,
                                         .v_dim = 64,
                                         .warpgroups = 2,
                                         .kv_block = 128,
                                         .stages = 2,
                                         .q_buffers = 1,
                                         .o_panels = 1,
                                         .f16 = true,
                                         .lse = true,
                                         .masked = false};
  shared::ForwardSm90Config uneven = two;
  uneven.kv_block = 80;
  const KernelMods dropout = weighing(mods::dropout(0.1, kSeed));
  const shared::ForwardSm90Config dropping = plan::config_with(two, dropout);
  EXPECT_TRUE(dropping.dropped);
  EXPECT_FALSE(dropping.weighted);
  EXPECT_EQ(dropping.safe_headroom, 10);
  EXPECT_EQ(plan::describe_weight(dropping, dropout),
            "dropped: a draw k of 2^15 against a threshold masks a packed weight");
  const shared::ForwardSm90Config general = plan::config_with(uneven, dropout);
  EXPECT_FALSE(general.dropped);
  EXPECT_TRUE(general.weighted);
  EXPECT_EQ(plan::describe_weight(general, dropout), "multiplied for each pair: 64 does not divide the keys of a tile");
  EXPECT_EQ(plan::describe_weight(plan::config_with(two, weighing({})), weighing({})), "");

  // 2^headroom times the largest weight stays below 2^15.
  const auto headroom = [&](const Expr& weight) { return plan::config_with(two, weighing(weight)).safe_headroom; };
  EXPECT_EQ(headroom({}), two.safe_headroom);
  EXPECT_EQ(headroom(to_f32(leaf::kv_idx() % 2)), 10);
  EXPECT_EQ(headroom(to_f32(leaf::kv_idx() % 33)), 10);
  EXPECT_EQ(headroom(to_f32(leaf::kv_idx() % 34)), 9);
  EXPECT_EQ(headroom(to_f32(leaf::kv_idx() % 4) * -1000.0), 3);
  EXPECT_EQ(headroom(to_f32(leaf::kv_idx() % 4) * 30000.0), 0);
  EXPECT_EQ(headroom(to_f32(leaf::kv_idx()) * 0.0), 10);
  EXPECT_EQ(headroom(kFactor * to_f32(leaf::kv_idx())), 7);
}

}  // namespace
}  // namespace heddle::test
