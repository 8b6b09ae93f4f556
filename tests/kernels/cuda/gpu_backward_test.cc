// backward_sm90 and backward_mma on a GPU, against the reference by the criterion of heddle/check.h. The first test is
// one tile; the lists of the emulated CTAs follow, then shapes that only a GPU computes soon enough.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "heddle/error.h"
#include "kernels/cuda/backward_mma_specs.h"
#include "kernels/cuda/gpu_backward_case.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

/// Takes backward_sm90 alone, whatever else the planner has.
class GpuBackward : public GpuTest {
  const ScopedVariable family_{"HEDDLE_FAMILY", "backward_sm90"};
};

TEST_F(GpuBackward, OneTile) { run_all_backwards(one_tile()); }
TEST_F(GpuBackward, RaggedEnds) { run_all_backwards(ragged_ends()); }
TEST_F(GpuBackward, ManyHeads) { run_all_backwards(many_heads()); }
TEST_F(GpuBackward, Masks) { run_all_backwards(masked()); }
TEST_F(GpuBackward, Groups) { run_all_backwards(grouped()); }
TEST_F(GpuBackward, Scores) { run_all_backwards(scored()); }
TEST_F(GpuBackward, Weights) { run_all_backwards(weighted()); }
TEST_F(GpuBackward, Normalizers) { run_all_backwards(normalized()); }
TEST_F(GpuBackward, Sequences) { run_all_backwards(sequences()); }
TEST_F(GpuBackward, Granules) { run_all_backwards(in_granules()); }
TEST_F(GpuBackward, DeviceLengths) { run_all_backwards(lengths_there()); }
TEST_F(GpuBackward, FewRows) { run_all_backwards(few_rows()); }
TEST_F(GpuBackward, WideDeviceLengths) { run_all_backwards(widened(lengths_there())); }
TEST_F(GpuBackward, CapturesByKeys) { run_all_backwards(captured_by_keys()); }
TEST_F(GpuBackward, CapturesByRows) { run_all_backwards(captured_by_rows()); }
TEST_F(GpuBackward, CapturesByPairs) { run_all_backwards(captured_by_pairs()); }
TEST_F(GpuBackward, CapturesWithoutMask) { run_all_backwards(captured_without_mask()); }
TEST_F(GpuBackward, Deterministic) { run_all_backwards(deterministic()); }
TEST_F(GpuBackward, Sinks) { run_all_backwards(sunk()); }
TEST_F(GpuBackward, SharedTiles) { run_all_backwards(shared_tiles()); }
TEST_F(GpuBackward, HeadDimsTypesAndLayouts) { run_all_backwards(dims_types_and_layouts()); }
TEST_F(GpuBackward, WideTiles) { run_all_backwards(wide_tiles()); }
TEST_F(GpuBackward, WideMasks) { run_all_backwards(widened(masked())); }
TEST_F(GpuBackward, WideGroups) { run_all_backwards(widened(grouped())); }
TEST_F(GpuBackward, WideScores) { run_all_backwards(widened(scored())); }
TEST_F(GpuBackward, WideWeights) { run_all_backwards(widened(weighted())); }
TEST_F(GpuBackward, WideNormalizers) { run_all_backwards(widened(normalized())); }
TEST_F(GpuBackward, WideGranules) { run_all_backwards(widened(in_granules())); }
TEST_F(GpuBackward, WideSequences) { run_all_backwards(widened(sequences())); }
TEST_F(GpuBackward, WideSinks) { run_all_backwards(widened(sunk())); }
TEST_F(GpuBackward, WideDimsTypesAndLayouts) { run_all_backwards(wide_dims_types_and_layouts()); }

/// dQ's sums are a ring.
class GpuBackwardRing : public GpuBackward {
  const ScopedVariable ring_{"HEDDLE_DQ_RING", "on"};
};

TEST_F(GpuBackwardRing, OneTile) { run_all_backwards(one_tile()); }
TEST_F(GpuBackwardRing, RaggedEnds) { run_all_backwards(ragged_ends()); }
TEST_F(GpuBackwardRing, ManyHeads) { run_all_backwards(many_heads()); }
TEST_F(GpuBackwardRing, Masks) { run_all_backwards(masked()); }
TEST_F(GpuBackwardRing, Groups) { run_all_backwards(grouped()); }
TEST_F(GpuBackwardRing, Scores) { run_all_backwards(scored()); }
TEST_F(GpuBackwardRing, Sequences) { run_all_backwards(sequences()); }
TEST_F(GpuBackwardRing, FewRows) { run_all_backwards(few_rows()); }
TEST_F(GpuBackwardRing, CapturesByRows) { run_all_backwards(captured_by_rows()); }
TEST_F(GpuBackwardRing, Deterministic) { run_all_backwards(deterministic()); }
TEST_F(GpuBackwardRing, Sinks) { run_all_backwards(sunk()); }
TEST_F(GpuBackwardRing, HeadDimsTypesAndLayouts) { run_all_backwards(dims_types_and_layouts()); }

/// Without a ring, where plans have one by default.
class GpuBackwardNoRing : public GpuBackward {
 private:
  const ScopedVariable ring_{"HEDDLE_DQ_RING", "off"};
};

TEST_F(GpuBackwardNoRing, OneTile) { run_all_backwards(one_tile()); }
TEST_F(GpuBackwardNoRing, ManyHeads) { run_all_backwards(many_heads()); }
TEST_F(GpuBackwardNoRing, Groups) { run_all_backwards(grouped()); }
TEST_F(GpuBackwardNoRing, Scores) { run_all_backwards(scored()); }

/// The portable family: gradients of captures in no order, and f32 and f64 besides.
class GpuBackwardMma : public GpuTest {
  const ScopedVariable family_{"HEDDLE_FAMILY", "backward_mma"};
};

BackwardList of_type(DType dtype, BackwardList list) {
  for (BackwardSpecs& at : list) at.spec.q_dtype = at.spec.k_dtype = at.spec.v_dtype = dtype;
  return list;
}
BackwardList of_f32(BackwardList list) { return of_type(DType::f32, std::move(list)); }
/// Within its head dimensions.
BackwardList of_f64(BackwardList list) {
  for (BackwardSpecs& at : list) {
    at.spec.qk_dim = std::min<std::int64_t>(at.spec.qk_dim, 128);
    at.spec.v_dim = std::min<std::int64_t>(at.spec.v_dim, 128);
  }
  return of_type(DType::f64, std::move(list));
}

TEST_F(GpuBackwardMma, OneTile) { run_all_backwards(one_tile()); }
TEST_F(GpuBackwardMma, RaggedEnds) { run_all_backwards(ragged_ends()); }
TEST_F(GpuBackwardMma, Masks) { run_all_backwards(masked()); }
TEST_F(GpuBackwardMma, Groups) { run_all_backwards(grouped()); }
TEST_F(GpuBackwardMma, Scores) { run_all_backwards(scored()); }
TEST_F(GpuBackwardMma, Weights) { run_all_backwards(weighted()); }
TEST_F(GpuBackwardMma, Normalizers) { run_all_backwards(normalized()); }
TEST_F(GpuBackwardMma, Sequences) { run_all_backwards(sequences()); }
TEST_F(GpuBackwardMma, Granules) { run_all_backwards(in_granules()); }
TEST_F(GpuBackwardMma, ServingAllSequences) {
  run_all_backwards(joined({serving_all(), captured_serving_all()}));
  run_all_backwards(widened(serving_all()));
  run_all_backwards(of_f32(serving_all()));
  run_all_backwards(of_f64(serving_all()));
}
TEST_F(GpuBackwardMma, DeviceLengths) { run_all_backwards(lengths_there()); }
TEST_F(GpuBackwardMma, FewRows) { run_all_backwards(few_rows()); }
TEST_F(GpuBackwardMma, Deterministic) { run_all_backwards(deterministic()); }
TEST_F(GpuBackwardMma, Sinks) { run_all_backwards(sunk()); }
TEST_F(GpuBackwardMma, HeadDimsTypesAndLayouts) { run_all_backwards(dims_types_and_layouts()); }
TEST_F(GpuBackwardMma, WideTiles) { run_all_backwards(wide_tiles()); }
TEST_F(GpuBackwardMma, WideGroups) { run_all_backwards(widened(grouped())); }
TEST_F(GpuBackwardMma, WideScores) { run_all_backwards(widened(scored())); }
TEST_F(GpuBackwardMma, WideDimsTypesAndLayouts) { run_all_backwards(wide_dims_types_and_layouts()); }
TEST_F(GpuBackwardMma, CapturesByKeys) { run_all_backwards(in_any_order(captured_by_keys())); }
TEST_F(GpuBackwardMma, CapturesByRows) { run_all_backwards(in_any_order(captured_by_rows())); }
TEST_F(GpuBackwardMma, CapturesByPairs) { run_all_backwards(in_any_order(captured_by_pairs())); }
TEST_F(GpuBackwardMma, CapturesInGranules) { run_all_backwards(captured_in_granules()); }
// Copied to 16 bits, with factors.
TEST_F(GpuBackwardMma, Bytes) {
  run_all_backwards(of_8_bits(joined({ragged_ends(), masked(), scored(), weighted(), normalized()})));
  run_all_backwards(of_8_bits(joined({grouped(), sequences(), lengths_there(), sunk(), serving_all()})));
  run_all_backwards(of_8_bits(joined({dims_types_and_layouts(), widened(grouped()), sliced(grouped())})));
  run_all_backwards(of_8_bits(in_order(captured_by_keys())));
}
// Run twice, they have the same bits.
TEST_F(GpuBackwardMma, OrderedCaptures) {
  run_all_backwards(in_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()})));
  run_all_backwards(widened(in_order(captured_by_keys())));
  run_all_backwards(sliced(in_order(captured_by_rows())));
  run_all_backwards(in_order(captured_serving_all()));
}
TEST_F(GpuBackwardMma, OrderedCapturesOfOtherTypes) {
  const BackwardList list = in_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()}));
  run_all_backwards(of_f32(list));
  run_all_backwards(of_f64(list));
}
TEST_F(GpuBackwardMma, CapturesWithoutMask) {
  run_all_backwards(in_any_order(captured_without_mask()));
  run_all_backwards(of_f32(in_any_order(captured_without_mask())));
  run_all_backwards(widened(in_any_order(captured_without_mask())));
}
TEST_F(GpuBackwardMma, CapturesInF32) {
  run_all_backwards(of_f32(in_any_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()}))));
}
TEST_F(GpuBackwardMma, WideCaptures) { run_all_backwards(widened(in_any_order(captured_by_keys()))); }
TEST_F(GpuBackwardMma, F32) {
  run_all_backwards(of_f32(ragged_ends()));
  run_all_backwards(of_f32(scored()));
  run_all_backwards(of_f32(widened(grouped())));
}
TEST_F(GpuBackwardMma, F64) {
  run_all_backwards(of_f64(joined({ragged_ends(), masked(), scored(), weighted(), normalized()})));
}
TEST_F(GpuBackwardMma, RowsOfF64) {
  run_all_backwards(of_f64(joined({grouped(), sequences(), sunk(), lengths_there(), few_rows()})));
}
TEST_F(GpuBackwardMma, LseRestOfF64) { run_all_backwards(of_f64(with_lse_rest(joined({scored(), sunk()}), -3000))); }
TEST_F(GpuBackwardMma, CapturesInF64) {
  run_all_backwards(of_f64(
      in_any_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs(), captured_without_mask()}))));
}
// CTAs share the columns of a gradient.
TEST_F(GpuBackwardMma, Slices) {
  run_all_backwards(sliced(joined({ragged_ends(), masked(), grouped(), scored(), weighted(), normalized()})));
}
TEST_F(GpuBackwardMma, SlicesOfRows) { run_all_backwards(sliced(joined({sequences(), lengths_there(), sunk()}))); }
TEST_F(GpuBackwardMma, SlicesOfTypesAndLayouts) { run_all_backwards(sliced_dims_types_and_layouts()); }
TEST_F(GpuBackwardMma, SlicesOfCaptures) {
  run_all_backwards(sliced(in_any_order(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()}))));
}
TEST_F(GpuBackwardMma, SlicesOfF32) {
  run_all_backwards(sliced(joined({ragged_ends(), scored(), sequences()}), DType::f32));
}
TEST_F(GpuBackwardMma, SlicesOfF64) {
  run_all_backwards(
      sliced(joined({ragged_ends(), scored(), sequences(), in_any_order(captured_by_keys())}), DType::f64));
}
// dk and dv have a pass each.
TEST_F(GpuBackwardMma, HeadDim128OfF64) {
  BackwardList list = joined({ragged_ends(), scored(), in_any_order(captured_by_keys())});
  for (BackwardSpecs& at : list) at.spec.qk_dim = at.spec.v_dim = 128;
  run_all_backwards(of_f64(list));
}

// More tiles than multiprocessors, and rings of buffers that go around many times.
TEST_F(GpuBackward, LargeGrids) {
  BackwardList list;
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    for (const char* mask : {"", "causal"}) {
      CaseSpec spec = backward_spec(390, 450, dim);
      spec.batch = 2;
      spec.kv_heads = dim > 128 ? 9 : 17;  // above 128 a tile has two CTAs
      spec.mask = mask;
      list.push_back({spec, rows_wanted()});
    }
    list.push_back({backward_spec(4097, 200, dim), rows_wanted()});
  }
  run_all_backwards(list);
}

/// A plan of gradients that 16 bytes divide does not run on others.
TEST_F(GpuBackward, RefusesGradientsAtWorsePlaces) {
  if (gpu_backend() != BackendChoice::cuda) GTEST_SKIP() << "asks for a GPU's alignment";
  constexpr std::int64_t kRows = 64, kDim = 64;
  const auto empty = [&](DType dtype, Dims shape) { return Tensor::empty_on(kGpu, dtype, shape); };
  const Dims shape{1, 1, kRows, kDim};
  Tensor q = empty(DType::bf16, shape), k = empty(DType::bf16, shape), v = empty(DType::bf16, shape),
         o = empty(DType::bf16, shape), d_o = empty(DType::bf16, shape), lse = empty(DType::f32, {1, 1, kRows}),
         room = empty(DType::bf16, {1, 1, kRows + 1, kDim});
  const auto at = [&](std::int64_t elements) {
    return TensorView(static_cast<char*>(room.data()) + 2 * elements, DType::bf16, shape, {0, 0, kDim, 1}, kGpu);
  };
  BackwardTensors tensors{.q = q, .k = k, .v = v, .o = o, .d_o = d_o};
  tensors.lse = lse;
  tensors.dk = at(0);
  const AttentionPlan plan(tensors, {});
  tensors.dk = at(4);
  const Tensor workspace = Tensor::empty_on(kGpu, DType::u8, {plan.workspace_bytes()});
  try {
    plan.run(tensors, {.workspace = workspace.data()});
    ADD_FAILURE() << "the plan ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("dk is at"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace heddle::test
