// The lists that the portable forward's cases are drawn from, on the host and on a GPU alike: shapes, types, layouts,
// sequences, pages, mods, sinks, normalizers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/attention_case.h"
#include "engine/deck.h"

namespace heddle::test {

inline std::vector<std::string> half_empty(std::vector<std::string> names) {
  names.resize(names.size() * 2);
  return names;
}

/// Latent attention as engines hold it: two tensors of queries, and two of pages.
inline CaseSpec latent_in_two_tensors(std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.qk_dim = 576;
  spec.v_dim = 512;
  spec.q_rest = spec.k_rest = 64;
  spec.values_in_keys = true;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  return spec;
}

struct PortableDims {
  std::int64_t qk, v;
};

/// Draws cases of the whole forward: shapes, types, layouts, sequences, pages, mods, sinks, normalizers.
class PortableSpecs {
 public:
  PortableSpecs(std::uint64_t first_seed, std::int64_t most_elements, const std::vector<DType>& dtypes)
      : seed_(first_seed), most_elements_(most_elements), dtype_(dtypes, 4) {}

  CaseSpec draw() {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    spec.q_rows = q_rows_.deal();
    spec.kv_rows = kv_rows_.deal();
    const PortableDims dims = dims_.deal();
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype_.deal();
    spec.group = group_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.batch = batch_.deal();
    spec.layout = layout_.deal();
    spec.sequences = sequences_.deal();
    spec.page_rows = page_rows_.deal();
    spec.listed_pages = spec.page_rows > 0 && seed_ % 2 == 0;
    const int shared = spec.page_rows > 0 ? 0 : shared_.deal();
    spec.share_q_batch = shared == 1;
    spec.share_kv_batch = shared == 2;
    spec.q_start = q_start_.deal();
    spec.kv_start = kv_start_.deal();
    spec.score = score_.deal();
    spec.mask = mask_.deal();
    spec.weight = weight_.deal();
    spec.normalizer = normalizer_.deal();
    spec.sinks = spec.normalizer == Normalizer::softmax ? sinks_.deal() : "none";
    spec.spread = spread_.deal();
    // In f16 a weight below 2^-24 of the largest is lost, and one below 2^-14 loses bits: where such ones alone decide
    // an element, its row may err by more than the criterion allows.
    if (spec.q_dtype == DType::f64) {  // what the family takes
      spec.qk_dim = std::min<std::int64_t>(spec.qk_dim, 128);
      spec.v_dim = std::min<std::int64_t>(spec.v_dim, 128);
    }
    if (spec.q_dtype == DType::f16) {
      spec.spread = std::min(spec.spread, 4.0);
      if (spec.weight == "drops_most") spec.weight.clear();
    }
    spec.scale = scale_.deal();
    spec.with_lse = with_lse_.deal() != 0;
    spec.with_lse_rest = with_lse_rest_.deal() != 0 && spec.with_lse && spec.normalizer == Normalizer::softmax;
    spec.with_max_scores = with_max_scores_.deal() == 0 && spec.normalizer == Normalizer::softmax;
    if (custom_o_.deal() == 0) spec.o_dtype = o_dtype_.deal();
    if (given_.deal() == 1) {
      spec.rows = "given";
      spec.block = block_.deal();
    }
    shrink(spec);
    return spec;
  }

 private:
  void shrink(CaseSpec& spec) const {
    const auto too_large = [&] {
      const std::int64_t elements = spec.batch * spec.q_heads() * spec.q_rows * spec.kv_rows;
      return elements * (spec.qk_dim + spec.v_dim + 64) > most_elements_ * 192;
    };
    if (too_large()) spec.batch = 1;
    if (too_large()) spec.kv_heads = 1;
    if (too_large()) spec.group = std::min<std::int64_t>(spec.group, 2);
    while (too_large() && spec.q_rows > 80) spec.q_rows -= 64;
    while (too_large() && spec.kv_rows > 80) spec.kv_rows -= 64;
  }

  std::uint64_t seed_;
  std::int64_t most_elements_;
  Deck<std::int64_t> q_rows_{{1, 2, 5, 16, 17, 63, 64, 65, 127, 128, 129, 150, 200, 0}, 1},
      kv_rows_{{1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257, 333, 0}, 2};
  Deck<PortableDims> dims_{{{64, 64},
                            {64, 64},
                            {128, 128},
                            {128, 128},
                            {16, 16},
                            {80, 80},
                            {96, 96},
                            {192, 128},
                            {256, 256},
                            {1, 1},
                            {8, 40},
                            {33, 5},
                            {20, 72},
                            {130, 255}},
                           3};
  Deck<DType> dtype_;
  Deck<std::int64_t> group_{{1, 2, 3, 8}, 5}, kv_heads_{{1, 2, 3}, 6}, batch_{{1, 2, 3}, 7};
  Deck<Layout> layout_{{Layout::bhsd, Layout::bshd, Layout::gaps, Layout::sliced, Layout::padded, Layout::reversed,
                        Layout::expanded, Layout::one_row},
                       8};
  Deck<std::string> sequences_{{"whole", "whole", "lengths", "packed"}, 9};
  Deck<std::int64_t> page_rows_{{0, 0, 0, 1, 5, 16}, 10};
  Deck<int> shared_{{0, 0, 0, 1, 2}, 11};
  Deck<std::string> q_start_{{"none", "none", "ahead", "aligned", "uniform"}, 12};
  Deck<std::string> kv_start_{{"none", "none", "none", "ahead", "uniform"}, 13};
  Deck<std::string> score_{half_empty(score_names()), 14}, mask_{half_empty(mask_names()), 15},
      weight_{half_empty(half_empty(weight_names())), 16};
  Deck<Normalizer> normalizer_{{Normalizer::softmax, Normalizer::softmax, Normalizer::softmax, Normalizer::softmax,
                                Normalizer::none, Normalizer::sigmoid},
                               17};
  Deck<std::string> sinks_{{"none", "none", "none", "normal", "large", "small", "mixed"}, 18};
  Deck<double> spread_{{0.1, 1, 1, 1, 4, 30}, 19};
  Deck<std::optional<double>> scale_{{std::nullopt, std::nullopt, std::nullopt, std::nullopt, 0.0, -0.1}, 20};
  Deck<int> with_lse_{{1, 1, 0}, 21}, custom_o_{{0, 1, 2, 3}, 22}, given_{{0, 0, 1}, 24};
  Deck<int> with_lse_rest_{{0, 1}, 26}, with_max_scores_{{0, 1, 2}, 27};
  Deck<DType> o_dtype_{{DType::f64, DType::f32, DType::f16, DType::bf16}, 23};
  Deck<BlockSize> block_{{{64, 64}, {128, 128}, {64, 32}, {192, 16}}, 25};
};

/// Draws types of 8 bits: keys and values, beside queries of 16 bits or of 8, with factors or without.
class BytesDeck {
 public:
  void turn(CaseSpec& spec) {
    spec.q_dtype = q_dtype_.deal();
    spec.k_dtype = k_dtype_.deal();
    spec.v_dtype = v_dtype_.deal();
    spec.descale = descale_.deal() != 0;
    // P is f16: see PortableSpecs::draw().
    spec.spread = std::min(spec.spread, 4.0);
    if (spec.weight == "drops_most") spec.weight.clear();
  }

 private:
  Deck<DType> q_dtype_{{DType::bf16, DType::bf16, DType::f16, DType::e4m3, DType::e5m2}, 21},
      k_dtype_{{DType::e4m3, DType::e5m2}, 22}, v_dtype_{{DType::e4m3, DType::e5m2, DType::e4m3}, 23};
  Deck<int> descale_{{0, 1}, 24};
};

/// Cases of `Specs` whose types have 8 bits.
template <class Specs>
class BytesSpecs {
 public:
  template <class... Arguments>
  explicit BytesSpecs(Arguments&&... arguments) : source_(std::forward<Arguments>(arguments)...) {}

  CaseSpec draw() {
    CaseSpec spec = source_.draw();
    types_.turn(spec);
    return spec;
  }

 private:
  Specs source_;
  BytesDeck types_;
};

/// Cases whose reads are proven inside only for positions from 0 on, or that no kernel is asked to take.
inline bool fits(const CaseSpec& spec) {
  const bool reads_queries = spec.score.starts_with("streamed") || spec.mask.find("documents") != std::string::npos;
  return !reads_queries || spec.q_start != "uniform";
}

}  // namespace heddle::test
