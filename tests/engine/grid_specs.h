// Draws for the grids: every value of every list occurs about equally often, in combinations that follow from a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/attention_case.h"
#include "engine/deck.h"
#include "sample.h"

namespace heddle::test {

/// HEDDLE_TEST_FULL=1: ten times as many; HEDDLE_TEST_REDUCED=1: a tenth.
inline int scaled(int count) {
  if (takes_all()) return count * 10;
  return is_reduced() ? std::max(1, count / 10) : count;
}

/// Whether the run takes case `number` of a grid's scaled() ones: by default a third of them.
inline bool is_taken(int number) { return is_reduced() || is_drawn(static_cast<std::uint64_t>(number), 3); }

/// The part of `count` cases that the run takes.
inline int taken_of(int count) {
  int taken = 0;
  for (int i = 0; i < count; ++i) taken += is_taken(i) ? 1 : 0;
  return taken;
}

/// Adds one empty name for each name.
inline std::vector<std::string> half_empty(std::vector<std::string> names) {
  names.resize(names.size() * 2);
  return names;
}

struct Types {
  DType q, k, v;
};
struct HeadDims {
  std::int64_t qk, v;
};

/// Work that a case may cost in the interpreter and in products.
struct Budget {
  std::int64_t elements = 150'000;
  std::int64_t products = 30'000'000;
};

inline bool exceeds(const Budget& budget, const CaseSpec& spec) {
  const std::int64_t elements = spec.batch * spec.q_heads() * spec.q_rows * spec.kv_rows;
  return elements > budget.elements || elements * (spec.qk_dim + spec.v_dim) > budget.products;
}

/// Some cases stay larger.
inline void shrink_to(const Budget& budget, CaseSpec& spec) {
  const auto too_large = [&] { return exceeds(budget, spec); };
  if (too_large()) spec.batch = 1;
  if (too_large()) spec.kv_heads = 1;
  if (too_large()) spec.group = std::min<std::int64_t>(spec.group, 2);
  if (too_large() && spec.q_rows > 70) spec.q_rows -= 64;
  if (too_large() && spec.kv_rows > 130) spec.kv_rows -= 64;
}

/// Deals specs for the CPU's backends.
class SpecSource {
 public:
  explicit SpecSource(const Budget& budget = {}) : budget_(budget) {}

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
    shrink_to(budget_, spec);
    return spec;
  }

 private:
  Budget budget_;
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

/// Judges a part of 200 drawn problems. `change` makes a spec one of the test's, of `kinds` kinds in turn; a run takes
/// all of a turn or none.
template <class Change>
void run_drawn(int kinds, Change&& change) {
  SpecSource source;
  for (int i = 0; i < scaled(200); ++i) {
    CaseSpec spec = source.draw();
    change(spec, i);
    if (!is_taken(i / kinds)) continue;
    AttentionCase attention_case(spec);
    run_and_judge(attention_case);
  }
}

/// Three queries of many keys, whose parts are attended apart and whose rows are merged.
template <class Change>
void run_many_keys(Change&& change) {
  for (const std::int64_t keys : {2048, 5000}) {
    for (const char* mask : {"", "causal_lower_right", "some_queries_blind"}) {
      CaseSpec spec;
      spec.q_rows = 3;
      spec.kv_rows = keys;
      spec.mask = mask;
      spec.sinks = "large";
      change(spec);
      AttentionCase attention_case(spec);
      run_and_judge(attention_case);
    }
  }
}

}  // namespace heddle::test
