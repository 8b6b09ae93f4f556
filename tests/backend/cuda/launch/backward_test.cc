// Plans of a backward on Hopper: which kernels a run launches, one after the other.
#include "heddle/backward.h"

#include <string>
#include <vector>

#include "launch_case.h"
#include "scoped_environment.h"

namespace heddle::cuda {
namespace {

using testing::ElementsAre;

/// Takes backward_sm90 alone, whatever else the planner has.
class LaunchBackward : public LaunchCase {
  const ScopedVariable family_{"HEDDLE_FAMILY", "backward_sm90"};
};

struct Backward {
  CallTensors call;
  BackwardTensors tensors;
  AttentionOptions options;
  std::vector<Tensor> owned;

  explicit Backward(
      const Call& of = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 300, .dim = 64})
      : call(of) {
    const AttentionTensors& forward = call.tensors();
    tensors = {.q = forward.q, .k = forward.k, .v = forward.v, .o = forward.o, .d_o = forward.o};
    tensors.lse = *forward.lse;
    tensors.d_o = there(DType::bf16, forward.o.shape);
    tensors.dq = there(DType::bf16, forward.q.shape);
    tensors.dk = there(DType::bf16, forward.k.shape);
    tensors.dv = there(DType::bf16, forward.v.shape);
  }
  TensorView there(DType dtype, const Dims& shape) {
    owned.push_back(Tensor::empty_on(kFirst, dtype, shape));
    return owned.back();
  }
  /// A score_mod that adds `term`, of this capture, whose gradient is asked for.
  void capture(const std::string& term, const Dims& shape) {
    Symbols symbols;
    symbols.captures["x"] = {DType::f32, shape.size()};
    options.score_mod = parse("score + " + term, symbols);
    options.bindings.captures["x"] = there(DType::f32, shape);
    tensors.d_captures["x"] = there(DType::f32, shape);
  }
  /// The kernels of a run.
  std::vector<std::string> kernels() {
    const AttentionPlan plan(tensors, options);
    const Tensor workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes()});
    const int before = fake().launches;
    plan.run(tensors, {.workspace = const_cast<void*>(workspace.data())});
    std::vector<std::string> names;
    for (int i = before; i < fake().launches; ++i) names.emplace_back(fake().names[i % kFakeNamesKept]);
    return names;
  }
};

TEST_F(LaunchBackward, RowsMainAndDq) {
  Backward plain;
  EXPECT_THAT(plain.kernels(), ElementsAre("backward_rows", "backward_sm90"));  // tiles make dq of a ring
  const ScopedVariable ring("HEDDLE_DQ_RING", "off");
  EXPECT_THAT(plain.kernels(), ElementsAre("backward_rows", "backward_sm90", "backward_d_q"));
  plain.options.deterministic = true;
  EXPECT_THAT(plain.kernels(), ElementsAre("backward_rows", "backward_sm90", "backward_d_q"));
}

TEST_F(LaunchBackward, CapturesHaveAPass) {
  Backward slopes;
  slopes.capture("x[h] * (kv_idx - q_idx)", {4});
  EXPECT_THAT(slopes.kernels(), ElementsAre("clear_reads", "backward_rows", "backward_sm90", "backward_reads",
                                            "collect_reads", "scatter_reads", "store_reads"));
  Backward closed;
  closed.capture("x[q_idx]", {150});
  closed.tensors.dq = closed.tensors.dk = closed.tensors.dv = {};
  EXPECT_THAT(closed.kernels(),
              ElementsAre("clear_reads", "backward_rows", "collect_reads", "scatter_reads", "store_reads"));
  Backward shared;
  shared.capture("x[h, q_idx, kv_idx]", {4, 150, 300});
  shared.options.deterministic = true;  // a launch for each sequence
  EXPECT_THAT(shared.kernels(), ElementsAre("clear_reads", "backward_rows", "backward_sm90", "backward_reads",
                                            "backward_reads", "backward_d_q", "store_reads"));
}

TEST_F(LaunchBackward, LengthsThereAreListedFirst) {
  Backward padded;
  const Tensor lengths = Tensor::zeros(DType::i32, {2}).to(kFirst);
  padded.options.q_lengths = padded.options.kv_lengths = lengths.view();
  EXPECT_THAT(padded.kernels(), ElementsAre("place_sequences", "list_backward_blocks", "list_backward_tiles",
                                            "backward_rows", "backward_sm90", "backward_d_q"));
  Backward packed({.batch = 1, .q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 300, .dim = 64});
  const Tensor sums = Tensor::zeros(DType::i32, {4}).to(kFirst);
  packed.options.cu_seqlens_q = packed.options.cu_seqlens_kv = sums.view();
  packed.options.max_q_len = 100;
  packed.options.max_kv_len = 200;
  EXPECT_THAT(packed.kernels(), ElementsAre("place_sequences", "list_backward_blocks", "list_backward_tiles",
                                            "fill_backward_gaps", "backward_rows", "backward_sm90", "backward_d_q"));
}

}  // namespace
}  // namespace heddle::cuda
