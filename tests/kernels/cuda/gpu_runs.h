// A plan that runs again and again while numbers in the GPU's memory change: lengths, cumulative lengths, tables.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/cuda/driver/driver.h"
#include "kernels/cuda/gpu_case.h"

namespace heddle::test {

/// On the host and, where the case runs there, on the GPU.
template <class T>
class Numbers {
 public:
  explicit Numbers(const Dims& shape) : there_(Tensor::empty(kType, shape)) {
    if (gpu_backend() == BackendChoice::cuda) there_ = there_.to({DeviceKind::cuda, 0});
  }
  ConstTensorView view() const { return there_; }
  /// Waits for no stream but that of the copy.
  void set(const std::vector<T>& values) {
    ASSERT_EQ(std::ssize(values), there_.count());
    if (gpu_backend() == BackendChoice::cuda) {
      cuda::copy_and_wait(0, there_.data(), values.data(), values.size() * sizeof(T));
    } else {
      std::ranges::copy(values, static_cast<T*>(there_.data()));
    }
  }

 private:
  static constexpr DType kType = sizeof(T) == 8 ? DType::i64 : DType::i32;
  Tensor there_;
};

/// A plan for lengths that change, and a stream; or, where the cases run on the CPU, what the options say now.
class Runs {
 public:
  Runs(GpuCase& c, const AttentionOptions& options) : c_(c) {
    if (gpu_backend() == BackendChoice::cuda) plan_.emplace(c.tensors(), options);
  }
  void run() {
    if (!plan_) return run_planned();
    c_.upload();
    plan_->run(c_.tensors(), {.workspace = workspace(), .stream = stream_.handle()});
    finish();
  }
  /// The run as a graph, which is then replayed.
  void capture() {
    if (!plan_) return;
    const cuda::Driver& cu = cuda::driver();
    void* const own = workspace();  // allocates
    cuda::check(cu.StreamBeginCapture(stream_.handle(), cuda::CUstreamCaptureMode::global), "beginning a capture");
    plan_->run(c_.tensors(), {.workspace = own, .stream = stream_.handle()});
    cuda::check(cu.StreamEndCapture(stream_.handle(), &graph_), "ending a capture");
    cuda::check(cu.GraphInstantiate(&executable_, graph_, 0), "making a graph");
  }
  void replay() {
    if (!plan_) return run_planned();
    c_.upload();
    cuda::check(cuda::driver().GraphLaunch(executable_, stream_.handle()), "launching a graph");
    finish();
  }
  void destroy_graph() {
    if (!plan_) return;
    cuda::driver().GraphExecDestroy(executable_);
    cuda::driver().GraphDestroy(graph_);
  }

 private:
  void run_planned() { c_.run(); }
  void* workspace() { return c_.workspace(plan_->workspace_bytes()); }
  void finish() {
    stream_.wait();
    c_.download();
  }

  GpuCase& c_;
  std::optional<AttentionPlan> plan_;
  Stream stream_;
  cuda::CUgraph graph_ = nullptr;
  cuda::CUgraphExec executable_ = nullptr;
};

}  // namespace heddle::test
