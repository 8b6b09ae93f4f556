// The portable backward on the host, against the reference by the criterion of check.h: the lists that backward_sm90
// runs, over fragments that are plain loops, and some over each architecture's fragments, whose instructions the host
// computes. Each case is a compilation of seconds: HEDDLE_TEST_SEED draws an eighth of the lists, of each one case, and
// half of the architectures; HEDDLE_TEST_FULL=1 runs all, with every kernel of the family's table in turns.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "engine/fill_cases.h"
#include "engine/large_scores.h"
#include "heddle/check.h"
#include "heddle/error.h"
#include "kernels/cuda/backward_mma_specs.h"
#include "kernels/portable/host_backward.h"
#include "sample.h"

namespace heddle::test {
namespace {

using shared::FragmentKind;

bool full() { return takes_all(); }

void judge(const BackwardSpecs& at, FragmentKind fragments, std::size_t candidate) {
  run_backward_on_host_and_judge(
      at.spec, at.backward,
      {.fragments = fragments, .candidate = candidate, .seed = static_cast<unsigned>(at.spec.seed + candidate)});
}

void judge_all(unsigned number, const BackwardList& list, FragmentKind fragments = FragmentKind::host) {
  if (!is_drawn(number, 8)) GTEST_SKIP() << "not drawn";
  const std::size_t drawn = drawn_case(number, list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (full() || i == drawn) judge(list[i], fragments, drawn_case(1000 * (number + 1) + i, 8));
  }
}

/// One pass gives all gradients: waves that have their rows alone, and, with head dimensions above 64, waves that share
/// them. The first `kernels` of the table, in turns.
void judge_once(unsigned number, BackwardList list, FragmentKind fragments, std::initializer_list<std::int64_t> dims,
                std::size_t kernels = 2) {
  if (!is_drawn(number, 4)) GTEST_SKIP() << "not drawn";
  const std::size_t drawn = drawn_case(number, list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (const std::int64_t dim : dims) {
      list[i].spec.qk_dim = list[i].spec.v_dim = dim;
      list[i].spec.allow_tf32 = fragments == FragmentKind::tf32;
      if (full() || i == drawn) judge(list[i], fragments, (number + i) % kernels);
    }
  }
}

/// In f64 with head dimensions of up to 128, which its kernels take.
BackwardList of_type(BackwardList list, DType dtype) {
  for (BackwardSpecs& at : list) {
    at.spec.q_dtype = at.spec.k_dtype = at.spec.v_dtype = dtype;
    if (dtype != DType::f64) continue;
    at.spec.qk_dim = std::min<std::int64_t>(at.spec.qk_dim, 128);
    at.spec.v_dim = std::min<std::int64_t>(at.spec.v_dim, 128);
  }
  return list;
}

TEST(BackwardOnHost, RaggedEnds) { judge_all(0, ragged_ends()); }
TEST(BackwardOnHost, Masks) { judge_all(1, masked()); }
TEST(BackwardOnHost, Groups) { judge_all(2, grouped()); }
TEST(BackwardOnHost, Scores) { judge_all(3, scored()); }
TEST(BackwardOnHost, Weights) { judge_all(4, weighted()); }
TEST(BackwardOnHost, Normalizers) { judge_all(5, normalized()); }
TEST(BackwardOnHost, Sequences) { judge_all(6, sequences()); }
TEST(BackwardOnHost, DeviceLengths) { judge_all(7, lengths_there()); }
TEST(BackwardOnHost, ServingAllSequences) {
  judge_all(3, serving_all());
  judge_all(3, captured_serving_all());
}
TEST(BackwardOnHost, ServingAllSequencesInOtherTypes) {
  judge_all(5, widened(serving_all()));
  judge_all(5, of_type(serving_all(), DType::f64));
  judge_all(5, sliced(serving_all()));
}
TEST(BackwardOnHost, ServingAllSequencesOverMma) { judge_all(7, serving_all(), FragmentKind::mma); }
TEST(BackwardOnHost, ServingAllSequencesOverOuter) {
  judge_all(1, of_type(serving_all(), DType::f32), FragmentKind::outer);
}
TEST(BackwardOnHost, ServingAllSequencesOverGfx11) { judge_all(4, serving_all(), FragmentKind::gfx11); }
TEST(BackwardOnHost, Sinks) { judge_all(0, sunk()); }
TEST(BackwardOnHost, HeadDimsTypesAndLayouts) { judge_all(1, dims_types_and_layouts()); }
TEST(BackwardOnHost, WideTiles) { judge_all(2, wide_tiles()); }
TEST(BackwardOnHost, WideGroups) { judge_all(3, widened(grouped())); }
TEST(BackwardOnHost, WideScores) { judge_all(4, widened(scored())); }
TEST(BackwardOnHost, WideDimsTypesAndLayouts) { judge_all(5, wide_dims_types_and_layouts()); }
TEST(BackwardOnHost, F32) {
  judge_all(6, of_type(ragged_ends(), DType::f32));
  judge_all(6, of_type(scored(), DType::f32));
}
// All numbers are f64: lse, what a row has, the reals of mods, sums.
TEST(BackwardOnHost, F64) {
  judge_all(7, of_type(joined({ragged_ends(), masked(), scored(), weighted(), normalized()}), DType::f64));
  judge_all(7, of_type(with_lse_rest(joined({scored(), weighted()}), -3000), DType::f64));
}
TEST(BackwardOnHost, RowsOfF64) {
  judge_all(1, of_type(joined({grouped(), sequences(), sunk(), lengths_there()}), DType::f64));
  judge_all(1, of_type(with_lse_rest(joined({sequences(), sunk(), lengths_there()})), DType::f64));
}
TEST(BackwardOnHost, ScoresOverDmma) {
  judge_all(3, of_type(joined({scored(), masked(), weighted(), normalized()}), DType::f64), FragmentKind::dmma);
  judge_all(3, of_type(with_lse_rest(joined({scored(), sunk()}), -3000), DType::f64), FragmentKind::dmma);
}
TEST(BackwardOnHost, RowsOverDmma) {
  judge_all(
      5, of_type(joined({ragged_ends(), grouped(), sequences(), sunk(), lengths_there(), serving_all()}), DType::f64),
      FragmentKind::dmma);
}
TEST(BackwardOnHost, DimsOverDmma) {
  judge_all(6, of_type(joined({dims_types_and_layouts(), wide_dims_types_and_layouts()}), DType::f64),
            FragmentKind::dmma);
}
TEST(BackwardOnHost, ScoresOfF64OverFma) {
  judge_all(3, of_type(joined({scored(), masked(), sunk()}), DType::f64), FragmentKind::fma);
}

// lse in two words: every kind of scores, weights, rows and sequences; then scores that lse alone cannot normalise.
TEST(BackwardOnHost, LseRestOfScores) {
  judge_all(0, with_lse_rest(joined({ragged_ends(), masked(), scored(), weighted()})));
  judge_all(0, with_lse_rest(joined({grouped(), scored()}), -3000));
}
TEST(BackwardOnHost, LseRestOfRows) {
  judge_all(2, with_lse_rest(joined({grouped(), sequences(), sunk(), lengths_there()})));
  judge_all(2, with_lse_rest(joined({sequences(), sunk(), lengths_there()}), -3000));
}

/// The gradients of scores that are far from 0, over some fragments.
void expect_right(LargeScores& large, const HostBackwardRun& run, double allowed) {
  large.attend(BackendChoice::cpu);
  run_backward_on_host(large.backward(), large.options, run);
  EXPECT_LT(large.error(), allowed);
}
void run_large(FragmentKind fragments, DType dtype) {
  const double allowed = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 0.03;
  LargeShape shape = {.dtype = dtype, .queries = 70, .keys = 90, .dim = 32, .group = 2};
  unsigned number = 0;
  for (const LargeForm form : {LargeForm::added, LargeForm::mapped, LargeForm::plain}) {
    for (const double level : {0.0, -0x1p20, 0x1p24, -0x1p30}) {
      // Products that add up exactly, or to one number; and numbers that f16 has.
      const bool plain = level == -0x1p20 || (level == -0x1p30 && dtype != DType::f16);
      if (form == LargeForm::plain && !plain) continue;
      if (!is_drawn(number++ + static_cast<unsigned>(fragments), 8)) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(form) << ' ' << level);
      LargeScores large(
          shape, [&](auto, auto) { return level; }, form);
      expect_right(large, {.fragments = fragments, .candidate = number % 3}, allowed);
    }
  }
  for (const double low : {-1e9, static_cast<double>(std::numeric_limits<float>::lowest())}) {
    if (!is_drawn(number++ + static_cast<unsigned>(fragments), 2)) continue;
    SCOPED_TRACE(testing::Message() << "a mask of " << low);
    LargeScores large(shape, [&](auto row, auto key) { return key < row - 10 ? 0.0 : low; });
    if (low == -1e9) large.set_sink(-1e9);
    expect_right(large, {.fragments = fragments}, allowed);
  }
}
TEST(BackwardOnHost, LargeScores) { run_large(FragmentKind::host, DType::f32); }
TEST(BackwardOnHost, LargeScoresOverMma) { run_large(FragmentKind::mma, DType::bf16); }
TEST(BackwardOnHost, LargeScoresOverFma) { run_large(FragmentKind::fma, DType::f32); }
TEST(BackwardOnHost, LargeScoresOverOuter) { run_large(FragmentKind::outer, DType::f32); }
TEST(BackwardOnHost, LargeScoresOfF64) { run_large(FragmentKind::fma, DType::f64); }
TEST(BackwardOnHost, LargeScoresOverDmma) { run_large(FragmentKind::dmma, DType::f64); }
TEST(BackwardOnHost, LargeScoresOverGfx12) { run_large(FragmentKind::gfx12, DType::f16); }

// Keys past the end, whose scores are 0, have infinite weights.
TEST(BackwardOnHost, OnceFarBelowZero) {
  LargeScores large({.dtype = DType::bf16, .queries = 70, .keys = 90, .dim = 32}, [](auto, auto) { return -0x1p20; });
  expect_right(large, {}, 0.03);
}

// Without the rest p is 1 where it should be 1 / n.
TEST(BackwardOnHost, LargeScoresNeedTheRest) {
  LargeScores large({.queries = 5}, [](auto, auto) { return -1e9; });
  large.attend(BackendChoice::cpu);
  BackwardTensors tensors = large.backward();
  tensors.lse_rest.reset();
  run_backward_on_host(tensors, large.options);
  EXPECT_GT(large.error(), 1);
}

/// Several steps, ends inside of fragments, partial blocks, a group: in both 16-bit types, or f32.
void run_steps(FragmentKind fragments) {
  if (!full() && static_cast<unsigned>(fragments) % 2 != drawn_case(0, 2)) GTEST_SKIP() << "not drawn";
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const bool wide = shared::fragments_of(fragments).of_many_rows || fragments == FragmentKind::fma;
    BackwardSpecs at = {backward_spec(90, dtype == DType::bf16 ? 150 : 100, 64), rows_wanted()};
    const bool of_f64 = fragments == FragmentKind::dmma;
    at.spec.q_dtype = at.spec.k_dtype = at.spec.v_dtype = of_f64 ? DType::f64 : wide ? DType::f32 : dtype;
    at.spec.v_dim = dtype == DType::bf16 ? 64 : 40;
    at.spec.allow_tf32 = fragments == FragmentKind::tf32;
    at.spec.group = 2;
    at.spec.mask = "causal_lower_right";
    const std::size_t candidate = dtype == DType::bf16 ? 0 : 1;
    judge(at, fragments, candidate);
    if (full()) judge(at, fragments, 1 - candidate);
  }
}

TEST(BackwardOnHost, StepsOverMma) { run_steps(FragmentKind::mma); }
TEST(BackwardOnHost, StepsOverFma) { run_steps(FragmentKind::fma); }
TEST(BackwardOnHost, StepsOverDmma) { run_steps(FragmentKind::dmma); }
TEST(BackwardOnHost, StepsOverOuter) { run_steps(FragmentKind::outer); }
TEST(BackwardOnHost, StepsOverTf32) { run_steps(FragmentKind::tf32); }
TEST(BackwardOnHost, ListsOverTf32) {
  BackwardList list = joined({scored(), masked(), grouped(), sequences(), wide_dims_types_and_layouts()});
  for (BackwardSpecs& at : list) at.spec.allow_tf32 = true;
  judge_all(6, of_type(list, DType::f32), FragmentKind::tf32);
}
TEST(BackwardOnHost, ScoresOverOuter) {
  judge_all(1, of_type(joined({scored(), masked(), weighted()}), DType::f32), FragmentKind::outer);
}
TEST(BackwardOnHost, RowsOverOuter) {
  judge_all(2, of_type(joined({grouped(), sequences(), sunk(), lengths_there()}), DType::f32), FragmentKind::outer);
}
TEST(BackwardOnHost, DimsOverOuter) {
  judge_all(3, of_type(joined({dims_types_and_layouts(), wide_dims_types_and_layouts()}), DType::f32),
            FragmentKind::outer);
}
TEST(BackwardOnHost, StepsOverGfx11) { run_steps(FragmentKind::gfx11); }
TEST(BackwardOnHost, StepsOverGfx12) { run_steps(FragmentKind::gfx12); }
TEST(BackwardOnHost, StepsOverGfx9) { run_steps(FragmentKind::gfx9); }
TEST(BackwardOnHost, WideOverMma) { judge_all(4, wide_dims_types_and_layouts(), FragmentKind::mma); }
TEST(BackwardOnHost, ScoresOverMma) { judge_all(5, scored(), FragmentKind::mma); }
TEST(BackwardOnHost, SequencesOverMma) { judge_all(6, sequences(), FragmentKind::mma); }

// dk, dv and dq by one pass, over several tiles of keys, waves that attend no key of a step, and ends inside of tiles.
BackwardList several_tiles() {
  BackwardList list;
  for (const char* mask : {"", "causal_lower_right", "sliding_window", "documents"}) {
    BackwardSpecs at = {backward_spec(150, 300, 64), rows_wanted()};
    at.spec.mask = mask;
    at.spec.group = list.size() % 2 == 0 ? 1 : 2;
    list.push_back(at);
  }
  return joined({list, sequences()});
}
TEST(BackwardOnHost, OncePlain) { judge_once(0, several_tiles(), FragmentKind::host, {64, 16}); }
TEST(BackwardOnHost, OnceSharedRows) { judge_once(1, several_tiles(), FragmentKind::host, {100, 96}); }
TEST(BackwardOnHost, OnceOverMma) { judge_once(2, several_tiles(), FragmentKind::mma, {40, 16}); }
// Each wave adds dq of its own keys.
TEST(BackwardOnHost, OnceOverOuter) {
  judge_once(0, of_type(several_tiles(), DType::f32), FragmentKind::outer, {40, 96}, 3);
  judge_once(1, of_type(joined({scored(), sunk()}), DType::f32), FragmentKind::outer, {64}, 3);
}
TEST(BackwardOnHost, OnceOverTf32) {
  judge_once(2, of_type(several_tiles(), DType::f32), FragmentKind::tf32, {100, 16}, 3);
  judge_once(3, of_type(joined({scored(), sunk()}), DType::f32), FragmentKind::tf32, {64}, 3);
}
TEST(BackwardOnHost, OnceSharedRowsOverMma) { judge_once(3, several_tiles(), FragmentKind::mma, {128, 96}); }

// CTAs share the columns of a gradient.
TEST(BackwardOnHost, Slices) {
  judge_all(0, sliced(joined({ragged_ends(), masked(), grouped(), scored(), weighted(), normalized()})));
}
TEST(BackwardOnHost, SlicesOfRows) { judge_all(1, sliced(joined({sequences(), lengths_there(), sunk()}))); }
TEST(BackwardOnHost, SlicesOfTypesAndLayouts) { judge_all(2, sliced_dims_types_and_layouts()); }
TEST(BackwardOnHost, SlicesOfCaptures) {
  judge_all(3, sliced(in_any_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()}))));
}
TEST(BackwardOnHost, SlicesWithLseRest) {
  judge_all(4, sliced(with_lse_rest(joined({scored(), sequences(), sunk()}), -3000)));
}
TEST(BackwardOnHost, SlicesOfF64) {
  judge_all(5, sliced(joined({ragged_ends(), scored(), sequences(), in_any_order(captured_by_keys())}), DType::f64));
}
/// Small ones: an architecture's instructions take the host long.
BackwardList sliced_steps(DType dtype) {
  BackwardList list = sliced(joined({grouped(), scored(), in_any_order(captured_by_keys())}), dtype);
  for (BackwardSpecs& at : list) {
    at.spec.q_rows = std::min<std::int64_t>(at.spec.q_rows, 70);
    at.spec.kv_rows = std::min<std::int64_t>(at.spec.kv_rows, 80);
    at.spec.group = std::min<std::int64_t>(at.spec.group, 2);
    at.spec.batch = at.spec.kv_heads = 1;
  }
  return list;
}
TEST(BackwardOnHost, SlicesOverMma) {
  judge_all(6, sliced_steps(DType::bf16), FragmentKind::mma);
  judge_all(6, sliced_dims_types_and_layouts(), FragmentKind::mma);
}
TEST(BackwardOnHost, SlicesOverFma) {
  judge_all(7, sliced_steps(DType::f32), FragmentKind::fma);
  judge_all(7, sliced_steps(DType::f64), FragmentKind::fma);
}
TEST(BackwardOnHost, SlicesOverDmma) { judge_all(2, sliced_steps(DType::f64), FragmentKind::dmma); }
TEST(BackwardOnHost, SlicesOfOuter) { judge_all(0, sliced_steps(DType::f32), FragmentKind::outer); }
TEST(BackwardOnHost, SlicesOfTf32) {
  BackwardList list = sliced_steps(DType::f32);
  for (BackwardSpecs& at : list) at.spec.allow_tf32 = true;
  judge_all(1, list, FragmentKind::tf32);
}

// Tensors of 8 bits are copied to 16, and have factors.
TEST(BackwardOnHost, BytesOfScores) {
  judge_all(1, of_8_bits(joined({ragged_ends(), masked(), scored(), weighted(), normalized()})));
}
TEST(BackwardOnHost, BytesOfRows) {
  judge_all(3, of_8_bits(joined({grouped(), sequences(), lengths_there(), sunk(), serving_all()})));
}
TEST(BackwardOnHost, BytesOfTypesAndLayouts) {
  judge_all(5, of_8_bits(joined({dims_types_and_layouts(), wide_dims_types_and_layouts()})));
  judge_all(5, of_8_bits(sliced(grouped())));
}
TEST(BackwardOnHost, BytesWithLseRest) { judge_all(7, of_8_bits(with_lse_rest(joined({scored(), sequences()})))); }
TEST(BackwardOnHost, BytesOfCaptures) {
  judge_all(0, of_8_bits(in_any_order(joined({captured_by_keys(), captured_by_pairs()}))));
  judge_all(0, of_8_bits(in_order(captured_by_rows())));
}
TEST(BackwardOnHost, BytesOverMma) { judge_all(2, of_8_bits(joined({grouped(), scored()})), FragmentKind::mma); }
TEST(BackwardOnHost, BytesOverGfx12) { judge_all(4, of_8_bits(grouped()), FragmentKind::gfx12); }

// Gradients of captures and params; adds have no order.
TEST(BackwardOnHost, CapturesByKeys) { judge_all(0, in_any_order(captured_by_keys())); }
TEST(BackwardOnHost, CapturesByRows) { judge_all(2, in_any_order(captured_by_rows())); }
TEST(BackwardOnHost, CapturesByPairs) { judge_all(4, in_any_order(captured_by_pairs())); }
TEST(BackwardOnHost, CapturesInF32) {
  judge_all(6,
            of_type(in_any_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()})), DType::f32));
}
TEST(BackwardOnHost, CapturesWithoutMask) { judge_all(3, in_any_order(captured_without_mask())); }
TEST(BackwardOnHost, CapturesInF64) {
  judge_all(5, of_type(in_any_order(joined(
                           {captured_by_keys(), captured_by_rows(), captured_by_pairs(), captured_without_mask()})),
                       DType::f64));
}
TEST(BackwardOnHost, CapturesOfF64OverFma) {
  judge_all(2, of_type(in_any_order(joined({captured_by_rows(), captured_by_keys()})), DType::f64), FragmentKind::fma);
}
TEST(BackwardOnHost, CapturesOverDmma) {
  judge_all(0, of_type(in_any_order(joined({captured_by_rows(), captured_by_keys(), captured_by_pairs()})), DType::f64),
            FragmentKind::dmma);
}
TEST(BackwardOnHost, WideCaptures) {
  judge_all(7, widened(in_any_order(joined({captured_by_keys(), captured_by_rows()}))));
}
TEST(BackwardOnHost, CapturesOverMma) { judge_all(1, in_any_order(captured_by_keys()), FragmentKind::mma); }
TEST(BackwardOnHost, CapturesOverFma) {
  judge_all(3, of_type(in_any_order(captured_by_rows()), DType::f32), FragmentKind::fma);
}
TEST(BackwardOnHost, CapturesOverOuter) {
  judge_all(4, of_type(in_any_order(joined({captured_by_rows(), captured_by_keys()})), DType::f32),
            FragmentKind::outer);
}
TEST(BackwardOnHost, CapturesOverGfx11) { judge_all(5, in_any_order(captured_by_rows()), FragmentKind::gfx11); }
TEST(BackwardOnHost, CapturesOverGfx9) { judge_all(7, in_any_order(captured_by_keys()), FragmentKind::gfx9); }

// Captures alone; beside dk alone, where a pass of keys sums all reads, those by heads too (alibi), head after head.
TEST(BackwardOnHost, CapturesBesideFewRows) {
  if (!is_drawn(3, 2)) GTEST_SKIP() << "not drawn";
  for (const char* wanted : {"reads", "k reads", "q reads", "v reads"}) {
    for (const char* score : {"padded", "t5_bias", "full_bias", "alibi"}) {
      BackwardSpecs at = captured(score, "", 64, wanted);
      at.spec.batch = 1;
      if (full() || is_drawn(static_cast<unsigned>(wanted[0] + score[0]), 4)) judge(at, FragmentKind::host, 0);
    }
  }
}

// Rows that are NaN and read a table outside of it alone.
TEST(BackwardOnHost, CapturesOfFills) {
  if (!is_drawn(4, 2)) GTEST_SKIP() << "not drawn";
  unsigned number = 0;
  for (const fill::FillCase& at : fill::kFillCases) {
    if (!full() && !is_drawn(100 + number++, 3)) continue;
    fill::run_and_judge_reads(at, number % 2 == 0 && !at.of_score,
                              [](const BackwardTensors& tensors, const AttentionOptions& options) {
                                run_backward_on_host(tensors, options);
                              });
  }
}

TEST(BackwardOnHost, OrderedCaptures) {
  judge_all(0, in_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()})));
}
TEST(BackwardOnHost, OrderedCapturesWithoutMask) { judge_all(2, in_order(captured_without_mask())); }
TEST(BackwardOnHost, OrderedCapturesOfAllSequences) { judge_all(4, in_order(captured_serving_all())); }
TEST(BackwardOnHost, OrderedCapturesInF64) {
  judge_all(6, of_type(in_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()})), DType::f64));
}
TEST(BackwardOnHost, OrderedCapturesOfSlices) {
  judge_all(1, sliced(in_order(joined({captured_by_keys(), captured_by_rows()}))));
}
TEST(BackwardOnHost, OrderedCapturesOverMma) { judge_all(3, in_order(captured_by_keys()), FragmentKind::mma); }
TEST(BackwardOnHost, OrderedCapturesOverOuter) {
  judge_all(5, of_type(in_order(captured_by_rows()), DType::f32), FragmentKind::outer);
}
TEST(BackwardOnHost, OrderedCapturesOverGfx11) { judge_all(7, in_order(captured_by_rows()), FragmentKind::gfx11); }

/// The gradients that mods' reads have, of some runs whose threads have different orders.
struct RunsOfReads {
  bool same_bits = true;
  std::vector<double> elements;  // of the first run's first gradient
  RunsOfReads(const char* score, DType dtype, bool ordered) {
    BackwardSpecs at = captured(score, "", 64, "reads");
    at.spec.q_dtype = at.spec.k_dtype = at.spec.v_dtype = dtype;
    at.backward.deterministic = ordered;
    if (dtype == DType::f64) at.backward.gradient_dtype = dtype;  // f32 shows none of the last bits
    AttentionCase attention_case(at.spec);
    BackwardCase backward_case(attention_case, at.backward);
    backward_case.run_forward();
    std::vector<std::vector<std::byte>> first;
    for (const unsigned seed : {1U, 2U, 3U}) {
      run_backward_on_host(backward_case.tensors(), attention_case.options(), {.seed = seed});
      if (seed == 1) first = backward_case.bits();
      same_bits = same_bits && backward_case.bits() == first;
    }
    const GuardedTensor& gradient = backward_case.gradients().front().memory;
    gradient.for_each_element(
        [&](const Dims& index, std::int64_t) { elements.push_back(get_element(gradient.view(), index)); });
  }
};
// Whatever order threads have, the bits are the same; parts that are added as reals differ. In f64 as few digits are
// lost.
TEST(BackwardOnHost, OrderedCapturesHaveTheSameBits) {
  for (const DType dtype : {DType::bf16, DType::f64}) {
    bool differ = false;
    for (const char* score : {"alibi", "t5_bias"}) {
      SCOPED_TRACE(score);
      const RunsOfReads ordered(score, dtype, true), any(score, dtype, false);
      EXPECT_TRUE(ordered.same_bits);
      differ = differ || !any.same_bits;
      if (dtype != DType::f64) continue;
      ASSERT_EQ(ordered.elements.size(), any.elements.size());
      double largest = 0, apart = 0;
      for (std::size_t i = 0; i < any.elements.size(); ++i) {
        largest = std::max(largest, std::abs(any.elements[i]));
        apart = std::max(apart, std::abs(any.elements[i] - ordered.elements[i]));
      }
      EXPECT_GT(largest, 0);
      EXPECT_LT(apart, 0x1p-46 * largest);
    }
    EXPECT_TRUE(differ);
  }
}

}  // namespace
}  // namespace heddle::test
