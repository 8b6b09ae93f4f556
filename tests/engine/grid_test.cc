// The grid: attention over shapes, types, layouts, sequences and mods against the reference, by the one criterion.
// Every value of every list occurs about equally often, in combinations that follow from a seed. HEDDLE_TEST_FULL=1
// draws ten times as many, HEDDLE_TEST_REDUCED=1 a tenth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "engine/attention_case.h"
#include "engine/conditioning.h"
#include "engine/deck.h"
#include "expr/random_expression.h"

namespace heddle::test {
namespace {

int scaled(int count) {
  if (std::getenv("HEDDLE_TEST_FULL") != nullptr) return count * 10;
  return std::getenv("HEDDLE_TEST_REDUCED") != nullptr ? std::max(1, count / 10) : count;
}

// As many empty names as full ones.
std::vector<std::string> half_empty(std::vector<std::string> names) {
  names.resize(names.size() * 2);
  return names;
}

struct Types {
  DType q, k, v;
};
struct HeadDims {
  std::int64_t qk, v;
};

// Work that a case may cost in the interpreter and in products.
constexpr std::int64_t kElements = 150'000;
constexpr std::int64_t kProducts = 30'000'000;

void shrink_to_budget(CaseSpec& spec) {
  const auto too_large = [&] {
    const std::int64_t elements = spec.batch * spec.q_heads() * spec.q_rows * spec.kv_rows;
    return elements > kElements || elements * (spec.qk_dim + spec.v_dim) > kProducts;
  };
  if (too_large()) spec.batch = 1;
  if (too_large()) spec.kv_heads = 1;
  if (too_large()) spec.group = std::min<std::int64_t>(spec.group, 2);
  if (too_large() && spec.q_rows > 70) spec.q_rows -= 64;
  if (too_large() && spec.kv_rows > 130) spec.kv_rows -= 64;
}

class SpecSource {
 public:
  CaseSpec draw() {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.q_rows = q_rows_.deal();
    spec.kv_rows = kv_rows_.deal();
    const HeadDims dims = dims_.deal();
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    const Types types = types_.deal();
    spec.q_dtype = types.q;
    spec.k_dtype = types.k;
    spec.v_dtype = types.v;
    spec.group = group_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.batch = batch_.deal();
    spec.layout = layout_.deal();
    spec.sequences = sequences_.deal();
    const int shared = shared_.deal();
    spec.share_q_batch = shared == 1;
    spec.share_kv_batch = shared == 2;
    spec.q_start = q_start_.deal();
    spec.kv_start = kv_start_.deal();
    spec.score = score_.deal();
    spec.mask = mask_.deal();
    spec.weight = weight_.deal();
    spec.rows = rows_.deal();
    spec.normalizer = normalizer_.deal();
    spec.sinks = spec.normalizer == Normalizer::softmax ? sinks_.deal() : "none";
    spec.spread = spread_.deal();
    spec.descale = true;
    spec.threads = threads_.deal();
    spec.scale = scale_.deal();
    if (custom_o_.deal() == 0) spec.o_dtype = o_dtype_.deal();
    shrink_to_budget(spec);
    return spec;
  }

 private:
  std::uint64_t seed_ = 0;
  Deck<std::int64_t> q_rows_{{0, 1, 1, 2, 7, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200, 257}, 1};
  Deck<std::int64_t> kv_rows_{{0, 1, 2, 7, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200, 257, 385, 900}, 2};
  Deck<HeadDims> dims_{
      {{1, 1}, {8, 8}, {17, 17}, {64, 64}, {64, 64}, {80, 80}, {128, 128}, {192, 128}, {576, 512}, {33, 5}}, 3};
  Deck<Types> types_{{{DType::f32, DType::f32, DType::f32},
                      {DType::f32, DType::f32, DType::f32},
                      {DType::f64, DType::f64, DType::f64},
                      {DType::f16, DType::f16, DType::f16},
                      {DType::bf16, DType::bf16, DType::bf16},
                      {DType::e4m3, DType::e4m3, DType::e4m3},
                      {DType::e5m2, DType::e5m2, DType::e5m2},
                      {DType::bf16, DType::e4m3, DType::e4m3},
                      {DType::f16, DType::e5m2, DType::e4m3},
                      {DType::e4m3, DType::e4m3, DType::e5m2}},
                     4};
  Deck<std::int64_t> group_{{1, 2, 3, 7}, 5}, kv_heads_{{1, 2, 3}, 6}, batch_{{1, 2, 3}, 7};
  Deck<Layout> layout_{{Layout::bhsd, Layout::bshd, Layout::gaps, Layout::sliced, Layout::reversed, Layout::expanded},
                       8};
  Deck<std::string> sequences_{{"whole", "whole", "lengths", "packed"}, 9};
  Deck<int> shared_{{0, 0, 0, 1, 2}, 10};
  Deck<std::string> q_start_{{"none", "none", "ahead", "aligned"}, 11};
  Deck<std::string> kv_start_{{"none", "none", "ahead", "uniform"}, 24};
  Deck<std::string> score_{half_empty(score_names()), 12}, mask_{half_empty(mask_names()), 13},
      weight_{half_empty(half_empty(weight_names())), 14};
  Deck<std::string> rows_{{"built", "built", "given", "lists"}, 15};
  Deck<Normalizer> normalizer_{{Normalizer::softmax, Normalizer::softmax, Normalizer::softmax, Normalizer::softmax,
                                Normalizer::none, Normalizer::sigmoid},
                               16};
  Deck<std::string> sinks_{{"none", "none", "none", "normal", "large", "small", "mixed"}, 17};
  Deck<double> spread_{{0.1, 1, 1, 1, 4, 30, 1e4}, 18};
  Deck<int> threads_{{1, 2, 3}, 19};
  Deck<std::optional<double>> scale_{{std::nullopt, std::nullopt, std::nullopt, std::nullopt, 0.0, -0.1}, 20};
  Deck<int> custom_o_{{0, 1, 2}, 21};
  Deck<DType> o_dtype_{{DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}, 22};
};

TEST(Grid, AgreesWithTheReference) {
  SpecSource source;
  for (int i = 0; i < scaled(600); ++i) {
    AttentionCase attention_case(source.draw());
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
  const int wanted = scaled(400);
  for (std::uint64_t seed = 1; judged < wanted; ++seed) {
    ++drawn;
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
