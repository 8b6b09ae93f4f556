// backward_sm90 on a GPU, against the reference by the criterion of heddle/check.h. The first test is one tile; the
// lists of the emulated CTAs follow, then shapes that only a GPU computes soon enough.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "heddle/check.h"
#include "heddle/error.h"
#include "kernels/cuda/backward_specs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

/// A backward whose tensors are copies on the first GPU.
class GpuBackwardCase {
 public:
  explicit GpuBackwardCase(const BackwardSpecs& at) : forward_(at.spec), backward_(forward_.host(), at.backward) {
    backward_.run_forward();
    for (const GuardedTensor* tensor : {&backward_.d_o, &backward_.d_lse_rows}) {
      copies_.push_back(std::make_unique<DeviceTensor>(*tensor, 0));
    }
    for (const Gradient& gradient : backward_.gradients()) {
      const auto memory = gradient.memory.memory();
      std::fill(memory.begin(), memory.end(), std::byte{0xff});
      copies_.push_back(std::make_unique<DeviceTensor>(gradient.memory, 0));
    }
    forward_.upload();
    for (const auto& copy : copies_) copy->upload();
  }

  /// Twice, in the same workspace: the second run finds what the first has left.
  void run_and_judge() {
    SCOPED_TRACE(backward_.text());
    std::vector<std::vector<std::byte>> first;
    forward_.options().backend = gpu_backend();
    const AttentionOptions options = forward_.options_there();
    const BackwardTensors there = tensors();
    const AttentionPlan plan(there, options);
    const Stream stream;
    for (int run = 0; run < 2; ++run) {
      plan.run(there, {.workspace = forward_.workspace(plan.workspace_bytes()), .stream = stream.handle()});
      stream.wait();
      for (std::size_t i = 2; i < copies_.size(); ++i) copies_[i]->download();
      if (run == 0) first = backward_.bits();
    }
    EXPECT_TRUE(!options.deterministic || backward_.bits() == first) << "the second run has other bits";
    for (const Gradient& gradient : backward_.gradients()) {
      EXPECT_TRUE(gradient.memory.gaps_untouched()) << gradient.name;
    }
    const GradientReport report = check_backward(backward_.tensors(), forward_.options());
    EXPECT_TRUE(report.passed) << report.text();
  }

 private:
  BackwardTensors tensors() const {
    BackwardTensors there = backward_.tensors();
    const AttentionTensors forward = forward_.tensors();
    there.q = forward.q, there.k = forward.k, there.v = forward.v, there.o = forward.o;
    if (forward.lse) there.lse = *forward.lse;
    const auto place = [](auto& view, const GuardedTensor& host, const DeviceTensor& copy) {
      const auto* own = static_cast<const std::byte*>(static_cast<const void*>(view.data));
      const auto offset = own - static_cast<const std::byte*>(host.view().data);
      view.data = static_cast<std::byte*>(copy.view().data) + offset;
      view.device = copy.view().device;
    };
    place(there.d_o, backward_.d_o, *copies_[0]);
    if (there.d_lse) place(*there.d_lse, backward_.d_lse_rows, *copies_[1]);
    for (std::size_t i = 0; i < backward_.gradients().size(); ++i) {
      const Gradient& gradient = backward_.gradients()[i];
      for (auto [name, view] : {std::pair("dq", &there.dq), std::pair("dk", &there.dk), std::pair("dv", &there.dv),
                                std::pair("d_sinks", &there.d_sinks)}) {
        if (gradient.name == name) place(**view, gradient.memory, *copies_[2 + i]);
      }
      for (auto [of, views] : {std::pair("d_captures", &there.d_captures), std::pair("d_params", &there.d_params)}) {
        for (auto& [name, view] : *views) {
          if (gradient.name == fmt::format("{}['{}']", of, name)) place(view, gradient.memory, *copies_[2 + i]);
        }
      }
    }
    return there;
  }

  GpuCase forward_;
  BackwardCase backward_;
  std::vector<std::unique_ptr<DeviceTensor>> copies_;  // of dO, d_lse and the gradients
};

/// Of backward_sm90 alone, whatever else the planner has.
class GpuBackward : public GpuTest {
  const ScopedVariable family_{"HEDDLE_FAMILY", "backward_sm90"};
};

void run_all_backwards(const BackwardList& list) {
  for (std::size_t i = 0; i < list.size(); i += reduced() ? 3 : 1) {
    if (gpu_backend() == BackendChoice::cpu) {
      AttentionCase attention_case(list[i].spec);
      BackwardCase backward_case(attention_case, list[i].backward);
      run_and_judge(backward_case, BackendChoice::cpu);
    } else {
      GpuBackwardCase(list[i]).run_and_judge();
    }
  }
}

TEST_F(GpuBackward, OneTile) { run_all_backwards(one_tile()); }
TEST_F(GpuBackward, RaggedEnds) { run_all_backwards(ragged_ends()); }
TEST_F(GpuBackward, Masks) { run_all_backwards(masked()); }
TEST_F(GpuBackward, Groups) { run_all_backwards(grouped()); }
TEST_F(GpuBackward, Scores) { run_all_backwards(scored()); }
TEST_F(GpuBackward, Weights) { run_all_backwards(weighted()); }
TEST_F(GpuBackward, Normalizers) { run_all_backwards(normalized()); }
TEST_F(GpuBackward, Sequences) { run_all_backwards(sequences()); }
TEST_F(GpuBackward, DeviceLengths) { run_all_backwards(lengths_there()); }
TEST_F(GpuBackward, CapturesByKeys) { run_all_backwards(captured_by_keys()); }
TEST_F(GpuBackward, CapturesByRows) { run_all_backwards(captured_by_rows()); }
TEST_F(GpuBackward, CapturesByPairs) { run_all_backwards(captured_by_pairs()); }
TEST_F(GpuBackward, Deterministic) { run_all_backwards(deterministic()); }
TEST_F(GpuBackward, Sinks) { run_all_backwards(sunk()); }
TEST_F(GpuBackward, HeadDimsTypesAndLayouts) { run_all_backwards(dims_types_and_layouts()); }
TEST_F(GpuBackward, WideTiles) { run_all_backwards(wide_tiles()); }
TEST_F(GpuBackward, WideMasks) { run_all_backwards(widened(masked())); }
TEST_F(GpuBackward, WideGroups) { run_all_backwards(widened(grouped())); }
TEST_F(GpuBackward, WideScores) { run_all_backwards(widened(scored())); }
TEST_F(GpuBackward, WideWeights) { run_all_backwards(widened(weighted())); }
TEST_F(GpuBackward, WideNormalizers) { run_all_backwards(widened(normalized())); }
TEST_F(GpuBackward, WideSequences) { run_all_backwards(widened(sequences())); }
TEST_F(GpuBackward, WideSinks) { run_all_backwards(widened(sunk())); }
TEST_F(GpuBackward, WideDimsTypesAndLayouts) { run_all_backwards(wide_dims_types_and_layouts()); }

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
