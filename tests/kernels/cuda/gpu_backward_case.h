// A backward on the first GPU: its forward runs on the CPU, its gradients are judged by the criterion of
// heddle/check.h.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "heddle/check.h"
#include "kernels/cuda/backward_specs.h"
#include "kernels/cuda/gpu_case.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {

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
    SCOPED_TRACE(text());
    std::vector<std::vector<std::byte>> first;
    const AttentionOptions options = options_there();
    const BackwardTensors there = tensors();
    const AttentionPlan plan(there, options);
    const Stream stream;
    for (int run = 0; run < 2; ++run) {
      plan.run(there, {.workspace = forward_.workspace(plan.workspace_bytes()), .stream = stream.handle()});
      stream.wait();
      download();
      if (run == 0) first = backward_.bits();
    }
    EXPECT_TRUE(!options.deterministic || backward_.bits() == first) << "the second run has other bits";
    judge();
  }

  // The parts of run_and_judge(), for runs that others stand between.
  std::string text() const { return backward_.text(); }
  AttentionOptions options_there() {
    forward_.options().backend = gpu_backend();
    return forward_.options_there();
  }
  /// Gradients, from the GPU.
  void download() {
    for (std::size_t i = 2; i < copies_.size(); ++i) copies_[i]->download();
  }
  void judge() {
    for (const Gradient& gradient : backward_.gradients()) {
      EXPECT_TRUE(gradient.memory.gaps_untouched()) << gradient.name;
    }
    const GradientReport report = check_backward(backward_.tensors(), forward_.options());
    EXPECT_TRUE(report.passed) << report.text();
  }
  BackwardTensors tensors() const {
    BackwardTensors there = backward_.tensors();
    const AttentionTensors forward = forward_.tensors();
    there.q = forward.q, there.k = forward.k, there.v = forward.v, there.o = forward.o;
    if (forward.lse) there.lse = *forward.lse;
    if (forward.lse_rest) there.lse_rest = *forward.lse_rest;
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

 private:
  GpuCase forward_;
  BackwardCase backward_;
  std::vector<std::unique_ptr<DeviceTensor>> copies_;  // of dO, d_lse and the gradients
};

/// These, side by side.
inline void run_all_backwards(const BackwardList& list) {
  const std::size_t step = reduced() ? 3 : 1;
  side_by_side((list.size() + step - 1) / step, [&](std::size_t i) {
    const BackwardSpecs& at = list[i * step];
    if (gpu_backend() == BackendChoice::cpu) {
      AttentionCase attention_case(at.spec);
      BackwardCase backward_case(attention_case, at.backward);
      run_and_judge(backward_case, BackendChoice::cpu);
    } else {
      GpuBackwardCase(at).run_and_judge();
    }
  });
}

}  // namespace heddle::test
