// The grid: attention over shapes, types, layouts, sequences and mods against the reference, by the one criterion.
// Every value of every list occurs about equally often, in combinations that follow from a seed. HEDDLE_TEST_SEED
// chooses the third of them that a run takes. HEDDLE_TEST_FULL=1 takes ten times as many as there are,
// HEDDLE_TEST_REDUCED=1 a tenth.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/conditioning.h"
#include "engine/grid_specs.h"
#include "engine/split_specs.h"
#include "expr/random_expression.h"

namespace heddle::test {
namespace {

TEST(Grid, AgreesWithTheReference) {
  SpecSource source;
  for (int i = 0; i < scaled(600); ++i) {
    const CaseSpec spec = source.draw();
    if (!is_taken(i)) continue;
    AttentionCase attention_case(spec);
    run_and_judge(attention_case);
  }
}

// Few queries and many keys, as in decoding.
TEST(Grid, AgreesWithTheReferenceOnManyKeys) {
  SpecSource source;
  Deck<std::int64_t> q_rows({1, 1, 2, 5, 13}, 31), kv_rows({1500, 2047, 2048, 2049, 4097, 5000}, 32);
  for (int i = 0; i < scaled(60); ++i) {
    CaseSpec spec = source.draw();
    spec.seed += 1'000'000;
    spec.q_rows = q_rows.deal();
    spec.kv_rows = kv_rows.deal();
    spec.batch = std::min<std::int64_t>(spec.batch, 2);
    if (spec.q_rows > 2) spec.kv_heads = spec.group = 1;
    if (!is_taken(i)) continue;
    AttentionCase attention_case(spec);
    run_and_judge(attention_case);
  }
}

// Queries, keys or both in two tensors: packed, in place, and in pieces of the keys.
TEST(Grid, RowsOfTwoTensors) {
  SplitSpecs<SpecSource> source(33, SpecSource());
  Deck<std::int64_t> few({1, 1, 3, 7}, 34);
  for (int i = 0; i < scaled(200); ++i) {
    CaseSpec spec = source.draw();
    spec.seed += 2'000'000;
    if (i % 2 == 1) spec.q_rows = few.deal();
    if (!is_taken(i)) continue;
    AttentionCase attention_case(spec);
    run_and_judge(attention_case);
  }
}

// A row that attends nothing has its sink's lse; +inf and NaN poison it nevertheless, but not rows past the end.
TEST(Grid, SinksOfRowsThatAttendNothing) {
  for (const char* mask : {"nothing", "some_queries_blind", "causal_lower_right"}) {
    for (const char* sequences : {"whole", "lengths"}) {
      for (const std::int64_t keys : {0, 40, 300}) {
        CaseSpec spec;
        spec.seed = 5;
        spec.batch = 2;
        spec.group = 9;  // each of the sinks
        spec.q_rows = 70;
        spec.kv_rows = keys;
        spec.mask = mask;
        spec.sequences = sequences;
        spec.sinks = "mixed";
        AttentionCase attention_case(spec);
        run_and_judge(attention_case);
      }
    }
  }
}

TEST(Grid, AgreesWithTheReferenceOnRandomMods) {
  Vocabulary scores{.reads_inside = true, .extreme_constants = false};
  Vocabulary weights = Vocabulary::mask();
  weights.reads_inside = true;
  weights.extreme_constants = false;
  Vocabulary masks = weights;
  masks.without = inexact_operations();
  RandomExpressions random_scores(11, scores), random_weights(12, weights), random_masks(13, masks);
  int judged = 0, drawn = 0;
  const int wanted = taken_of(scaled(400));
  for (std::uint64_t seed = 1; judged < wanted; ++seed) {
    CaseSpec spec;
    spec.seed = seed;
    spec.batch = 1 + static_cast<std::int64_t>(seed % 2);
    spec.group = 1 + static_cast<std::int64_t>(seed % 3);
    spec.q_rows = 1 + static_cast<std::int64_t>(seed * 7 % 30);
    spec.kv_rows = 1 + static_cast<std::int64_t>(seed * 13 % 150);
    spec.qk_dim = spec.v_dim = 8;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = seed % 4 == 0 ? DType::bf16 : seed % 4 == 1 ? DType::f64 : DType::f32;
    AttentionCase c(spec);
    // One name has one meaning, and the three sources share their names.
    RandomExpressions& source = seed % 3 == 0 ? random_scores : seed % 3 == 1 ? random_weights : random_masks;
    c.options().bindings = source.bindings();
    const int size = 2 + source.below(20);
    if (&source == &random_scores) c.options().score_mod = source.draw(ExprType::f32, size);
    if (&source == &random_weights) c.options().weight_mod = source.draw(ExprType::f32, size);
    if (&source == &random_masks) c.options().mask_mod = source.draw(ExprType::boolean, size);
    if (!is_taken(static_cast<int>(seed / 12))) continue;  // 12: the types and kinds of mods take turns
    ++drawn;
    if (!Conditioning(c).good(c.options().score_mod, c.options().weight_mod)) continue;
    ++judged;
    SCOPED_TRACE(&source == &random_scores    ? print(c.options().score_mod)
                 : &source == &random_weights ? print(c.options().weight_mod)
                                              : print(c.options().mask_mod));
    run_and_judge(c);
  }
  EXPECT_LT(drawn, 20 * wanted);
}

}  // namespace
}  // namespace heddle::test
