// The kernels of backward_sm90 in emulated CTAs, against the reference by the criterion of check.h: masks, mods,
// sequences, groups, head dims, types, and orders of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "engine/fill_cases.h"
#include "engine/large_scores.h"
#include "heddle/check.h"
#include "kernels/cuda/backward_capture_specs.h"
#include "kernels/cuda/emulated_backward.h"
#include "sample.h"

namespace heddle::test {
namespace {

void judge(const CaseSpec& spec, const BackwardSpec& backward_spec, EmulatedRun run = {}) {
  run.device_lengths = spec.device_lengths;
  AttentionCase attention_case(spec);
  BackwardCase backward_case(attention_case, backward_spec);
  SCOPED_TRACE(backward_case.text());
  backward_case.run_forward();
  for (const Gradient& gradient : backward_case.gradients()) {
    const auto memory = gradient.memory.memory();
    std::memset(memory.data(), 0xff, memory.size());
  }
  run_emulated_backward(backward_case.tensors(), attention_case.options(), run);
  for (const Gradient& gradient : backward_case.gradients()) {
    EXPECT_TRUE(gradient.memory.gaps_untouched()) << gradient.name;
  }
  const GradientReport report = check_backward(backward_case.tensors(), attention_case.options());
  EXPECT_TRUE(report.passed) << report.text();
}

// Each kernel takes seconds to compile. Without HEDDLE_TEST_FULL the first list is run and a sixth of the others, drawn
// by HEDDLE_TEST_SEED, and of a list one case. Every second case has the other way to load above head dim 128.
void judge_all(unsigned number, const BackwardList& list, EmulatedRun run = {}) {
  if (number > 0 && !is_drawn(number, 6)) GTEST_SKIP() << "not drawn";
  const std::size_t drawn = drawn_case(number, list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    run.other_loads = i % 2 == 1;
    if (takes_all() || i == drawn) judge(list[i].spec, list[i].backward, run);
  }
}

TEST(BackwardEmulated, OneTile) { judge_all(0, one_tile()); }
TEST(BackwardEmulated, RaggedEnds) { judge_all(1, ragged_ends()); }
TEST(BackwardEmulated, Masks) { judge_all(2, masked()); }
TEST(BackwardEmulated, Groups) { judge_all(3, grouped()); }
TEST(BackwardEmulated, Scores) { judge_all(4, scored()); }
TEST(BackwardEmulated, Weights) { judge_all(5, weighted()); }
TEST(BackwardEmulated, Normalizers) { judge_all(6, normalized()); }
TEST(BackwardEmulated, Sequences) { judge_all(7, sequences()); }
TEST(BackwardEmulated, Granules) { judge_all(0, in_granules()); }
TEST(BackwardEmulated, DeviceLengths) { judge_all(7, lengths_there()); }
TEST(BackwardEmulated, FewRows) { judge_all(1, few_rows()); }
TEST(BackwardEmulated, CapturesByKeys) { judge_all(8, captured_by_keys()); }
TEST(BackwardEmulated, CapturesByRows) { judge_all(9, captured_by_rows()); }
TEST(BackwardEmulated, CapturesByPairs) { judge_all(10, captured_by_pairs()); }
TEST(BackwardEmulated, CapturesWithoutMask) { judge_all(11, captured_without_mask()); }
// Sums of queries and of distances whose tiles add to the same partials.
TEST(BackwardEmulated, MixedPartials) {
  if (!takes_all()) GTEST_SKIP() << "asks for all cases";
  for (const char* score : {"relative_bias", "temperature_and_gate"}) {
    CaseSpec spec = backward_spec(150, 200, 64);
    spec.sequences = "packed";
    spec.batch = 3;
    spec.group = 2;
    spec.score = score;
    spec.normalizer = score == std::string("relative_bias") ? Normalizer::softmax : Normalizer::sigmoid;
    judge(spec, rows_wanted("reads"), {.mixed_partials = true});
  }
}
TEST(BackwardEmulated, Sinks) { judge_all(8, sunk()); }
TEST(BackwardEmulated, HeadDimsTypesAndLayouts) { judge_all(9, dims_types_and_layouts()); }

TEST(BackwardEmulated, WideTiles) { judge_all(0, wide_tiles()); }
TEST(BackwardEmulated, WideOtherLoads) {
  const BackwardList list = wide_tiles();
  const BackwardSpecs& drawn = list[drawn_case(23, list.size())];
  judge(drawn.spec, drawn.backward, {.other_loads = true});
}
TEST(BackwardEmulated, WideMasks) { judge_all(10, widened(masked())); }
TEST(BackwardEmulated, WideGroups) { judge_all(11, widened(grouped())); }
TEST(BackwardEmulated, WideScores) { judge_all(12, widened(scored())); }
TEST(BackwardEmulated, WideWeights) { judge_all(13, widened(weighted())); }
TEST(BackwardEmulated, WideNormalizers) { judge_all(14, widened(normalized())); }
TEST(BackwardEmulated, WideGranules) { judge_all(15, widened(in_granules())); }
TEST(BackwardEmulated, WideSequences) { judge_all(15, widened(sequences())); }
TEST(BackwardEmulated, WideSinks) { judge_all(16, widened(sunk())); }
TEST(BackwardEmulated, WideDimsTypesAndLayouts) { judge_all(17, wide_dims_types_and_layouts()); }

// A warpgroup of its own computes dQ.
BackwardList narrow(std::initializer_list<BackwardList> lists) {
  BackwardList list = joined(lists);
  std::erase_if(list, [](const BackwardSpecs& at) {
    const std::string& wanted = at.backward.wanted;
    return at.spec.qk_dim > 64 || at.spec.v_dim > 64 || (wanted.find('q') == std::string::npos && wanted != "all");
  });
  return list;
}
BackwardList apart_mods() { return narrow({masked(), scored(), weighted(), normalized()}); }
BackwardList apart_rows() { return narrow({sequences(), lengths_there(), sunk(), few_rows(), captured_by_keys()}); }
BackwardList apart_far() { return narrow({far_scores(), far_rows()}); }
TEST(BackwardEmulated, ApartTiles) {
  judge_all(0, narrow({one_tile(), ragged_ends(), types_and_layouts({{64, 33}})}), {.d_q_apart = true});
}
TEST(BackwardEmulated, ApartMods) { judge_all(1, apart_mods(), {.d_q_apart = true}); }
TEST(BackwardEmulated, ApartGranules) { judge_all(2, narrow({in_granules()}), {.d_q_apart = true}); }
TEST(BackwardEmulated, ApartRows) { judge_all(2, apart_rows(), {.d_q_apart = true}); }
TEST(BackwardEmulated, ApartFar) { judge_all(3, apart_far(), {.d_q_apart = true}); }
// K and V in shared memory, lse and delta where they stand.
TEST(BackwardEmulated, ApartFewRegisters) {
  judge_all(4, narrow({one_tile(), ragged_ends(), masked(), weighted(), normalized(), sequences(), far_scores()}),
            {.last_choice = true, .d_q_apart = true});
}
// More tiles than CTAs, in the second case some without steps.
TEST(BackwardEmulated, ApartAnyOrder) {
  for (const char* mask : {"", "causal"}) {
    CaseSpec spec = backward_spec(330, 900, 64);
    spec.mask = mask;
    for (unsigned order = 1; order <= (takes_all() ? 6U : 1U); ++order) {
      judge(spec, rows_wanted(), {.seed = order, .last_choice = order % 2 == 0, .d_q_apart = true});
    }
  }
}

// A ring of dQ's sums with two slots, which five heads use one after the other, without time between.
BackwardList of_five_heads(std::int64_t dim) {
  BackwardList list;
  for (const char* mask : {"causal", ""}) {
    CaseSpec spec = backward_spec(200, 300, dim);
    spec.kv_heads = 5;
    spec.mask = mask;
    list.push_back({spec, rows_wanted()});
    list.push_back(list.back());
    list.back().backward.deterministic = true;
  }
  CaseSpec packed = backward_spec(150, 200, dim);
  packed.batch = 3;
  packed.kv_heads = packed.group = 2;
  packed.sequences = "packed";
  packed.q_dtype = packed.k_dtype = packed.v_dtype = DType::f16;
  list.push_back({packed, rows_wanted()});
  return list;
}
BackwardList of_ring() {
  return joined({ragged_ends(), masked(), grouped(), scored(), weighted(), sequences(), few_rows(), sunk(),
                 dims_types_and_layouts()});
}
TEST(BackwardEmulated, NoRingOfAll) { judge_all(9, of_ring(), {.ring = false}); }
TEST(BackwardEmulated, RingOfAll) { judge_all(7, of_ring(), {.ring = true}); }
TEST(BackwardEmulated, ApartRingOfAll) { judge_all(8, narrow({of_ring()}), {.d_q_apart = true, .ring = true}); }
TEST(BackwardEmulated, Ring) { judge_all(0, of_five_heads(128), {.ring = true, .small_ring = true}); }
TEST(BackwardEmulated, ApartRing) {
  judge_all(0, of_five_heads(64), {.d_q_apart = true, .ring = true, .small_ring = true});
}

// Tiles that CTAs share: as plans share them, and cut into shares of which some attend no key of a warpgroup.
TEST(BackwardEmulated, SharedTiles) { judge_all(0, shared_tiles()); }
TEST(BackwardEmulated, ApartSharedTiles) { judge_all(0, narrow({shared_tiles()}), {.d_q_apart = true}); }
TEST(BackwardEmulated, Shares) {
  judge_all(10, joined({ragged_ends(), masked(), grouped(), weighted(), sequences(), dims_types_and_layouts()}),
            {.together = true, .shares = 3});
}
TEST(BackwardEmulated, WideShares) {
  judge_all(12, widened(joined({ragged_ends(), masked(), grouped(), sequences()})), {.shares = 3});
}
TEST(BackwardEmulated, ApartShares) {
  judge_all(11, narrow({ragged_ends(), masked(), scored(), weighted(), sequences(), types_and_layouts({{64, 33}})}),
            {.d_q_apart = true, .shares = 3});
}

// Tiles without steps behind others, where only dq is asked for, so that they end at once: none gives its keys back
// before the producer knows that the tile before did.
TEST(BackwardEmulated, TilesWithoutSteps) {
  if (!is_drawn(5, 6)) GTEST_SKIP() << "not drawn";
  for (const BackwardSpecs& at : sequences()) {
    if (at.backward.wanted == "q") judge(at.spec, at.backward, {.together = true, .shares = 2});
  }
}

// lse in two words, and rows of which one word has too few digits: blocks with and without such rows.
TEST(BackwardEmulated, LseRestNearZero) { judge_all(18, with_lse_rest(joined({ragged_ends(), sunk()}))); }
TEST(BackwardEmulated, FarScores) { judge_all(19, far_scores()); }
TEST(BackwardEmulated, FarRows) { judge_all(20, far_rows()); }
TEST(BackwardEmulated, FarReads) { judge_all(21, far_reads()); }
// A sink has all the weight of such rows: their sums over keys are 0, also those that are found in closed form.
TEST(BackwardEmulated, FarBelowASink) {
  if (!is_drawn(0, 3)) GTEST_SKIP() << "not drawn";
  const BackwardList list = far_reads();
  const auto sunk = std::ranges::find(list, "normal", [](const BackwardSpecs& at) { return at.spec.sinks; });
  ASSERT_NE(sunk, list.end());
  judge(sunk->spec, sunk->backward);
}
TEST(BackwardEmulated, WideFar) { judge_all(22, wide_far()); }

/// The gradients of exact scores that are far from 0, against float64.
void expect_right(LargeScores& large) {
  large.attend(BackendChoice::cpu);
  run_emulated_backward(large.backward(), large.options);
  EXPECT_LT(large.error(), 0.03);
}
void run_large(std::int64_t dim) {
  const bool full = takes_all();
  if (!is_drawn(static_cast<unsigned>(dim) / 64, 3)) GTEST_SKIP() << "not drawn";  // 1, 2 and 4
  const LargeShape shape = {.dtype = DType::bf16, .queries = 100, .keys = 140, .dim = dim, .group = 2};
  const std::size_t drawn = drawn_case(static_cast<unsigned>(dim), 9);
  std::size_t number = 0;
  for (const LargeForm form : {LargeForm::added, LargeForm::mapped, LargeForm::plain}) {
    for (const double level : {0x1p20, -0x1p20, -0x1p30}) {
      if (number++ != drawn && !full) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(form) << ' ' << level);
      LargeScores large(
          shape, [&](auto, auto) { return level; }, form);
      expect_right(large);
    }
  }
  for (const double low : {-1e9, static_cast<double>(std::numeric_limits<float>::lowest())}) {
    if (!full && low != -1e9) continue;
    SCOPED_TRACE(testing::Message() << "a mask of " << low);
    LargeScores large(shape, [&](auto row, auto key) { return key < row - 40 ? 0.0 : low; });
    if (low == -1e9) large.set_sink(-1e9);
    expect_right(large);
  }
}
TEST(BackwardEmulated, LargeScores64) { run_large(64); }
TEST(BackwardEmulated, LargeScores128) { run_large(128); }
TEST(BackwardEmulated, LargeScores256) { run_large(256); }

// With `deterministic`, no order of CTAs, threads and copies changes the bits; all CTAs run at one time. Without it the
// bits do change, so equal bits are no accident.
void expect_one_order(unsigned number, const BackwardList& list, const EmulatedRun& run = {}) {
  const bool full = takes_all();
  if (!is_drawn(number, 6)) GTEST_SKIP() << "not drawn";
  const std::size_t drawn = drawn_case(number, list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!full && i != drawn) continue;
    const auto bits_of = [&](bool deterministic, unsigned seed) {
      AttentionCase attention_case(list[i].spec);
      BackwardSpec backward_spec = list[i].backward;
      backward_spec.deterministic = deterministic;
      backward_spec.gradient_dtype = DType::f32;
      BackwardCase backward_case(attention_case, backward_spec);
      backward_case.run_forward();
      EmulatedRun own = run;
      own.seed = seed;
      own.together = true;
      own.device_lengths = list[i].spec.device_lengths;
      run_emulated_backward(backward_case.tensors(), attention_case.options(), own);
      if (deterministic) {
        const GradientReport report = check_backward(backward_case.tensors(), attention_case.options());
        EXPECT_TRUE(report.passed) << backward_case.text() << report.text();
      }
      return backward_case.bits();
    };
    EXPECT_EQ(bits_of(true, 1), bits_of(true, 2));
    if (!list[i].spec.mask.empty() && list[i].spec.mask != "causal") continue;
    EXPECT_NE(bits_of(false, 1), bits_of(false, 2)) << "more than two tiles add to each element";
  }
}
TEST(BackwardEmulated, Deterministic) { expect_one_order(1, deterministic()); }
TEST(BackwardEmulated, ApartDeterministic) { expect_one_order(5, narrow({deterministic()}), {.d_q_apart = true}); }

// Kernels that plans take where the compiler finds no registers for others.
TEST(BackwardEmulated, FewRegisters) {
  const bool full = takes_all();
  for (unsigned number = 0; number < 3; ++number) {
    if (!is_drawn(number, 6)) continue;
    CaseSpec spec = backward_spec(150, 200, number == 0 ? 64 : number == 1 ? 128 : 256);
    spec.group = 2;
    spec.mask = "causal_lower_right";
    spec.score = number == 1 ? "padded" : "softcap";
    spec.weight = number == 0 ? "dropout_by_params" : number == 1 ? "weights_by_key" : "";
    judge(spec, rows_wanted(), {.last_choice = true});
    if (!full) continue;
    spec.with_lse_rest = true;
    spec.far = -3000;
    judge(spec, rows_wanted(), {.last_choice = true});
  }
}

// Rows that are NaN and read a table outside of it alone.
TEST(BackwardEmulated, CapturesByPairsOfFills) {
  unsigned number = 0;
  for (const fill::FillCase& at : fill::kFillCases) {
    if (!takes_all() && !is_drawn(200 + number++, 6)) continue;
    fill::run_and_judge_reads(at, number % 2 == 0 && !at.of_score,
                              [](const BackwardTensors& tensors, const AttentionOptions& options) {
                                run_emulated_backward(tensors, options);
                              });
  }
}

// Orders of threads, copies and products that differ.
TEST(BackwardEmulated, AnyOrder) {
  const bool full = takes_all();
  for (unsigned order = 1; order <= (full ? 4U : 1U); ++order) {
    judge(backward_spec(200, 700, 64), rows_wanted(), {.seed = order});  // CTAs that draw tiles
    if (!full) continue;
    judge(backward_spec(330, 300, 128), rows_wanted(), {.seed = order});
    judge(backward_spec(330, 300, 192), rows_wanted(), {.seed = order});
    judge(backward_spec(330, 300, 256), rows_wanted(), {.seed = order});
  }
}

}  // namespace
}  // namespace heddle::test
