// The grid of the backward: the forward's cases with incoming gradients and wanted ones, against the reference by the
// one criterion. HEDDLE_TEST_FULL=1 draws ten times as many and larger ones, HEDDLE_TEST_REDUCED=1 a tenth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/backward_case.h"
#include "engine/conditioning.h"
#include "engine/grid_specs.h"
#include "expr/differentiate.h"
#include "expr/random_expression.h"

namespace heddle::test {
namespace {

// Judging a backward costs four times what judging its forward does.
Budget backward_budget() {
  if (std::getenv("HEDDLE_TEST_FULL") != nullptr) return {.elements = 60'000, .products = 12'000'000};
  return {.elements = 18'000, .products = 4'000'000};
}

// Row counts lose multiples of 64, so that they stay beside the edges of tiles.
void cut_to(const Budget& budget, CaseSpec& spec) {
  while (exceeds(budget, spec)) {
    if (spec.group > 1) {
      spec.group = 1;
    } else if (std::max(spec.q_rows, spec.kv_rows) > 64) {
      (spec.q_rows > spec.kv_rows ? spec.q_rows : spec.kv_rows) -= 64;
    } else {
      return;
    }
  }
}

class BackwardSpecSource {
 public:
  BackwardSpec draw() {
    BackwardSpec spec;
    spec.layout = layout_.deal();
    spec.d_o_as_q = d_o_as_q_.deal() == 1;
    if (other_dtype_.deal() == 1) spec.gradient_dtype = dtype_.deal();
    spec.with_d_lse = with_d_lse_.deal() == 1;
    spec.wanted = wanted_.deal();
    return spec;
  }

 private:
  Deck<Layout> layout_{
      {Layout::bhsd, Layout::bshd, Layout::gaps, Layout::sliced, Layout::reversed, Layout::expanded, Layout::one_row},
      51};
  Deck<int> d_o_as_q_{{0, 1}, 52}, other_dtype_{{0, 0, 1}, 53}, with_d_lse_{{0, 1}, 54};
  Deck<DType> dtype_{{DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}, 55};
  Deck<std::string> wanted_{{"all", "all", "all", "all", "all", "q", "k", "v", "kv", "reads"}, 56};
};

class BackwardGrid : public testing::TestWithParam<BackendChoice> {};
INSTANTIATE_TEST_SUITE_P(Backends, BackwardGrid, testing::ValuesIn(backward_backends()),
                         [](const auto& at) { return std::string(name(at.param)); });

TEST_P(BackwardGrid, AgreesWithTheReference) {
  SpecSource source(backward_budget());
  BackwardSpecSource backward_source;
  for (int i = 0; i < scaled(120); ++i) {
    CaseSpec spec = source.draw();
    cut_to(backward_budget(), spec);
    spec.with_lse_rest = needs_lse_rest(spec);
    AttentionCase attention_case(spec);
    BackwardCase backward_case(attention_case, backward_source.draw());
    run_and_judge(backward_case, GetParam());
  }
}

// Few queries and many keys, and the other way round.
TEST_P(BackwardGrid, AgreesWithTheReferenceOnLongSides) {
  SpecSource source(backward_budget());
  BackwardSpecSource backward_source;
  Deck<std::int64_t> few({1, 1, 2, 5}, 61), many({1500, 2047, 2048, 2049, 4097}, 62);
  for (int i = 0; i < scaled(10); ++i) {
    CaseSpec spec = source.draw();
    spec.seed += 1'000'000;
    spec.q_rows = i % 2 == 0 ? few.deal() : many.deal();
    spec.kv_rows = i % 2 == 0 ? many.deal() : few.deal();
    spec.batch = spec.kv_heads = 1;
    spec.group = std::min<std::int64_t>(spec.group, 2);
    spec.with_lse_rest = needs_lse_rest(spec);
    AttentionCase attention_case(spec);
    BackwardCase backward_case(attention_case, backward_source.draw());
    run_and_judge(backward_case, GetParam());
  }
}

// A row that attends nothing passes d_lse on to its sink; a sink of +inf or NaN makes NaN, but not past the end.
TEST_P(BackwardGrid, SinksOfRowsThatAttendNothing) {
  for (const char* mask : {"nothing", "some_queries_blind", "causal_lower_right"}) {
    for (const char* sequences : {"whole", "lengths"}) {
      for (const std::int64_t keys : {0, 20}) {
        CaseSpec spec;
        spec.seed = 5;
        spec.batch = 2;
        spec.group = 9;  // each of the sinks
        spec.q_rows = 22;
        spec.kv_rows = keys;
        spec.qk_dim = spec.v_dim = 8;
        spec.mask = mask;
        spec.sequences = sequences;
        spec.sinks = "mixed";
        AttentionCase attention_case(spec);
        BackwardCase backward_case(attention_case, {});
        run_and_judge(backward_case, GetParam());
      }
    }
  }
}

// Random mods of small attentions whose values and derivatives f32 computes.
class RandomBackwards {
 public:
  RandomBackwards(const Vocabulary& scores, const Vocabulary& weights, const Vocabulary& masks)
      : scores_(11, scores), weights_(12, weights), masks_(13, masks) {}

  /// The next case; its mods are in its options.
  std::unique_ptr<AttentionCase> draw() {
    for (;;) {
      auto drawn = std::make_unique<AttentionCase>(next_spec());
      draw_mods(*drawn);
      if (well_conditioned(*drawn)) return drawn;
    }
  }
  int drawn() const { return static_cast<int>(seed_); }

 private:
  CaseSpec next_spec() {
    CaseSpec spec;
    const std::uint64_t seed = spec.seed = ++seed_;
    spec.batch = 1 + static_cast<std::int64_t>(seed % 2);
    spec.group = 1 + static_cast<std::int64_t>(seed % 3);
    spec.q_rows = 1 + static_cast<std::int64_t>(seed * 7 % 30);
    spec.kv_rows = 1 + static_cast<std::int64_t>(seed * 13 % 70);
    spec.qk_dim = spec.v_dim = 8;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = seed % 4 == 0 ? DType::bf16 : seed % 4 == 1 ? DType::f64 : DType::f32;
    if (seed % 7 == 3) spec.normalizer = seed % 2 == 0 ? Normalizer::none : Normalizer::sigmoid;
    return spec;
  }

  // Names mean the same in the three sources. Most scores drawn alone saturate the softmax.
  void draw_mods(AttentionCase& c) {
    AttentionOptions& options = c.options();
    options.bindings = scores_.bindings();
    const auto size = [&] { return 2 + scores_.below(20); };
    const int kind = scores_.below(6);
    if (kind < 4) {
      const Expr score = scores_.draw(ExprType::f32, size());
      options.score_mod = kind == 0   ? score
                          : kind == 1 ? leaf::score() + 2.0 * tanh(score)
                                      : leaf::score() * (0.5 + sigmoid(score));
    }
    if (kind == 4 || scores_.below(3) == 0) options.weight_mod = weights_.draw(ExprType::f32, size());
    if (kind == 5 || scores_.below(4) == 0) options.mask_mod = masks_.draw(ExprType::boolean, size());
  }

  static bool well_conditioned(const AttentionCase& c) {
    const Expr &score = c.options().score_mod, &weight = c.options().weight_mod;
    Conditioning conditioning(c);
    if (!conditioning.good(score, weight)) return false;
    const auto reads_good = [&](const Expr& mod, bool is_score) {
      const auto good = [&](const auto& read) {
        return is_score ? conditioning.good(read.gradient, {}) : conditioning.good({}, read.gradient);
      };
      return mod.empty() || (std::ranges::all_of(expr::d_captures(mod, std::nullopt), good) &&
                             std::ranges::all_of(expr::d_params(mod, std::nullopt), good));
    };
    if (!score.empty() && !conditioning.good(expr::d_score(score, std::nullopt), {})) return false;
    return reads_good(score, true) && reads_good(weight, false);
  }

  RandomExpressions scores_, weights_, masks_;
  std::uint64_t seed_ = 0;
};

std::string mods_text(const AttentionOptions& options) {
  std::string text;
  for (const Expr& mod : {options.score_mod, options.weight_mod, options.mask_mod}) {
    text += (mod.empty() ? "-" : print(mod)) + "\n";
  }
  return text;
}

TEST_P(BackwardGrid, AgreesWithTheReferenceOnRandomMods) {
  Vocabulary scores{.reads_inside = true, .extreme_constants = false};
  Vocabulary weights = Vocabulary::mask();
  weights.reads_inside = true;
  weights.extreme_constants = false;
  Vocabulary masks = weights;
  masks.without = inexact_operations();
  RandomBackwards random(scores, weights, masks);
  BackwardSpecSource backward_source;
  const int wanted = scaled(100);
  for (int judged = 0; judged < wanted; ++judged) {
    const std::unique_ptr<AttentionCase> attention_case = random.draw();
    SCOPED_TRACE("score, weight, mask:\n" + mods_text(attention_case->options()));
    BackwardCase backward_case(*attention_case, backward_source.draw());
    run_and_judge(backward_case, GetParam());
  }
  EXPECT_LT(random.drawn(), 30 * wanted);
}

// One owner for each gradient, so that threads change no bit.
class BackwardBits : public testing::TestWithParam<BackendChoice> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackwardBits);
INSTANTIATE_TEST_SUITE_P(Backends, BackwardBits, testing::ValuesIn(bitwise_backward_backends()),
                         [](const auto& at) { return std::string(name(at.param)); });

TEST_P(BackwardBits, AreTheSameForAnyNumberOfThreads) {
  struct Case {
    const char *score, *weight, *sequences;
    bool share_q, share_kv;
  };
  for (const Case& at : {Case{"alibi", "dropout", "whole", false, false}, Case{"t5_bias", "", "lengths", false, true},
                         Case{"temperature_and_gate", "weights_by_key", "whole", true, false},
                         Case{"full_bias", "", "packed", false, false},
                         Case{"streamed_shared", "dropout_by_head", "whole", false, true}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      CaseSpec spec;
      spec.seed = 77;
      spec.batch = 3;
      spec.kv_heads = 2;
      spec.group = 3;
      spec.q_rows = 70;
      spec.kv_rows = 135;
      spec.qk_dim = 20;
      spec.v_dim = 33;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype;
      spec.score = at.score;
      spec.weight = at.weight;
      spec.mask = "causal";
      spec.sequences = at.sequences;
      spec.share_q_batch = at.share_q;
      spec.share_kv_batch = at.share_kv;
      spec.sinks = "normal";
      AttentionCase attention_case(spec);
      BackwardCase backward_case(attention_case, {});
      SCOPED_TRACE(backward_case.text());
      backward_case.run_forward();
      attention_case.options().threads = 1;
      backward_case.run(GetParam());
      const auto expected = backward_case.bits();
      for (const int threads : {1, 2, 3, 5}) {
        attention_case.options().threads = threads;
        backward_case.run(GetParam());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(backward_case.bits()[i] == expected[i]) << backward_case.gradients()[i].name << ' ' << threads;
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle::test
