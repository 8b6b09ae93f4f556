// The portable forward on the host, against the reference by the one criterion: first its own text over fragments that
// are plain loops, then over each architecture's fragments, whose instructions the host computes. Every value of every
// list occurs about equally often, in combinations that follow from a seed. Each case is a compilation of a second, so
// a fifth of the counts below is drawn; HEDDLE_TEST_FULL=1 draws ten times the counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "engine/deck.h"
#include "heddle/error.h"
#include "kernels/portable/host_kernel.h"

namespace heddle::test {
namespace {

using shared::FragmentKind;

int scaled(int count) {
  if (std::getenv("HEDDLE_TEST_FULL") != nullptr) return count * 10;
  return std::max(1, count / (std::getenv("HEDDLE_TEST_REDUCED") != nullptr ? 10 : 5));
}

std::vector<std::string> half_empty(std::vector<std::string> names) {
  names.resize(names.size() * 2);
  return names;
}

struct HeadDims {
  std::int64_t qk, v;
};

/// Of the whole forward: shapes, types, layouts, sequences, pages, mods, sinks, normalizers.
class SpecSource {
 public:
  SpecSource(std::uint64_t first_seed, std::int64_t most_elements, const std::vector<DType>& dtypes)
      : seed_(first_seed), most_elements_(most_elements), dtype_(dtypes, 4) {}

  CaseSpec draw() {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    spec.q_rows = q_rows_.deal();
    spec.kv_rows = kv_rows_.deal();
    const HeadDims dims = dims_.deal();
    spec.qk_dim = dims.qk;
    spec.v_dim = dims.v;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = dtype_.deal();
    spec.group = group_.deal();
    spec.kv_heads = kv_heads_.deal();
    spec.batch = batch_.deal();
    spec.layout = layout_.deal();
    spec.sequences = sequences_.deal();
    spec.page_rows = page_rows_.deal();
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
    if (spec.q_dtype == DType::f64) {  // what the family does not take
      spec.score = spec.weight = "";
      spec.qk_dim = std::min<std::int64_t>(spec.qk_dim, 128);
      spec.v_dim = std::min<std::int64_t>(spec.v_dim, 128);
    }
    if (spec.q_dtype == DType::f16) {
      spec.spread = std::min(spec.spread, 4.0);
      if (spec.weight == "drops_most") spec.weight.clear();
    }
    spec.scale = scale_.deal();
    spec.with_lse = with_lse_.deal() != 0;
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
  Deck<HeadDims> dims_{{{64, 64},
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
  Deck<DType> o_dtype_{{DType::f64, DType::f32, DType::f16, DType::bf16}, 23};
  Deck<BlockSize> block_{{{64, 64}, {128, 128}, {64, 32}, {192, 16}}, 25};
};

/// Cases whose reads are proven inside only for positions from 0 on, or that no kernel is asked to take.
bool fits(const CaseSpec& spec) {
  if (spec.score.starts_with("streamed") && spec.q_start == "uniform") return false;
  return true;
}

/// What the grid of an architecture's fragments is.
struct Grid {
  FragmentKind fragments;
  int count;
  std::uint64_t seed;
  std::int64_t most_elements;
  std::vector<DType> dtypes = {DType::bf16, DType::f16};
};

void run_grid(const Grid& grid) {
  const auto& [fragments, count, seed, most_elements, dtypes] = grid;
  SpecSource source(seed, most_elements, dtypes);
  Deck<int> candidates({0, 0, 1, 2, 3}, seed + 1);
  for (int i = 0; i < count;) {
    const CaseSpec spec = source.draw();
    if (!fits(spec)) continue;
    ++i;
    SCOPED_TRACE(spec.text());
    try {
      AttentionCase c(spec);
      run_on_host_and_judge(c, {.fragments = fragments, .candidate = candidates.deal()});
    } catch (const Error& error) {
      // A mask of reals, which are f64 then; or given blocks of fewer keys than a fragment has.
      const bool may = spec.q_dtype == DType::f64 || (fragments == FragmentKind::gfx9 && spec.block);
      const bool refused = may && error.code() == ErrorCode::unsupported;
      EXPECT_TRUE(refused) << error.what();
    }
  }
}

/// Few queries and many keys, whose steps several CTAs share.
void run_decodes(const Grid& grid) {
  const auto& [fragments, count, seed, most_elements, dtypes] = grid;
  SpecSource source(seed, most_elements, dtypes);
  Deck<std::int64_t> q_rows({1, 1, 2, 3, 5, 16, 31}, seed + 1), kv_rows({1, 60, 129, 500, 900}, seed + 2),
      group({1, 2, 4, 7, 8, 20, 71}, seed + 3);
  Deck<int> splits({1, 2, 3, 7}, seed + 4), candidates({0, 0, 1}, seed + 5);
  for (int i = 0; i < count;) {
    CaseSpec spec = source.draw();
    spec.q_rows = q_rows.deal();
    spec.kv_rows = kv_rows.deal();
    spec.group = group.deal();
    spec.kv_heads = 1 + i % 2;
    spec.batch = std::min<std::int64_t>(spec.batch, 2);
    if (spec.q_rows > 2) spec.group = std::min<std::int64_t>(spec.group, 8);
    if (!fits(spec)) continue;
    ++i;
    SCOPED_TRACE(spec.text());
    try {
      AttentionCase c(spec);
      run_on_host_and_judge(c, {.fragments = fragments, .candidate = candidates.deal(), .splits = splits.deal()});
    } catch (const Error& error) {
      // A mask of reals, which are f64 then; or given blocks of fewer keys than a fragment has.
      const bool may = spec.q_dtype == DType::f64 || (fragments == FragmentKind::gfx9 && spec.block);
      const bool refused = may && error.code() == ErrorCode::unsupported;
      EXPECT_TRUE(refused) << error.what();
    }
  }
}

const std::vector<DType> kWide = {DType::f32, DType::f64};

TEST(ForwardOnHost, AgreesWithTheReference) { run_grid({FragmentKind::host, scaled(30), 0, 60'000}); }
TEST(ForwardOnHost, FewQueries) { run_decodes({FragmentKind::host, scaled(12), 2'000'000, 60'000}); }
TEST(ForwardOnHost, OverMma) { run_grid({FragmentKind::mma, scaled(16), 1'000'000, 30'000}); }
TEST(ForwardOnHost, FewQueriesOverMma) { run_decodes({FragmentKind::mma, scaled(8), 3'000'000, 30'000}); }
TEST(ForwardOnHost, OverGfx11) { run_grid({FragmentKind::gfx11, scaled(6), 7'000'000, 20'000}); }
TEST(ForwardOnHost, OverGfx12) { run_grid({FragmentKind::gfx12, scaled(6), 8'000'000, 20'000}); }
TEST(ForwardOnHost, OverGfx9) { run_grid({FragmentKind::gfx9, scaled(6), 9'000'000, 20'000}); }
TEST(ForwardOnHost, FewQueriesOverGfx11) { run_decodes({FragmentKind::gfx11, scaled(3), 10'000'000, 20'000}); }
TEST(ForwardOnHost, FewQueriesOverGfx9) { run_decodes({FragmentKind::gfx9, scaled(3), 11'000'000, 20'000}); }
TEST(ForwardOnHost, F32AndF64) { run_grid({FragmentKind::host, scaled(8), 4'000'000, 60'000, kWide}); }
TEST(ForwardOnHost, OverFma) { run_grid({FragmentKind::fma, scaled(5), 5'000'000, 6'000, kWide}); }
TEST(ForwardOnHost, FewQueriesOverFma) { run_decodes({FragmentKind::fma, scaled(3), 6'000'000, 6'000, kWide}); }

}  // namespace
}  // namespace heddle::test
