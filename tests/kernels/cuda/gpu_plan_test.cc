// AttentionPlan on a GPU: other memory each run, streams, threads, CUDA graphs. Updates: gpu_plan_updates_test.cc;
// refusals: gpu_plan_refusals_test.cc.
#include <gtest/gtest.h>

#include <thread>

#include "backend/cuda/driver/driver.h"
#include "count_allocations.h"
#include "heddle/devices.h"
#include "kernels/cuda/gpu_plan_cases.h"

namespace heddle::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(GpuPlan, RunsOnOtherMemoryEachTime) {
  GpuCase first(spec_of_plan(1)), second(spec_of_plan(2));
  const AttentionPlan plan(first.tensors(), first.options());
  EXPECT_EQ(plan.backend(), BackendChoice::cuda);
  const Stream stream;
  for (GpuCase* c : {&first, &second, &first}) {
    c->upload();
    plan.run(c->tensors(), {.workspace = c->workspace(), .stream = stream.handle()});
    stream.wait();
    c->download();
    judge(c->host());
  }
}

TEST_F(GpuPlan, RunsWithoutAllocating) {
  GpuCase c(spec_of_plan(5, "window_by_params"));
  const AttentionPlan plan(c.tensors(), c.options());
  const AttentionTensors tensors = c.tensors();
  const Bindings bindings = c.options().bindings;
  plan.run(tensors, {.workspace = c.workspace()});
  const cuda::ContextScope scope(0);
  std::size_t before = 0, after = 0, total = 0;
  cuda::check(cuda::driver().MemGetInfo(&before, &total), "asking for free memory");
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 10; ++i) plan.run(tensors, {.workspace = c.workspace(), .bindings = &bindings});
            }),
            0);
  cuda::check(cuda::driver().MemGetInfo(&after, &total), "asking for free memory");
  EXPECT_EQ(after, before);
}

TEST_F(GpuPlan, GivesTheSameBitsEachTime) {
  for (CaseSpec spec : {spec_of_plan(3), many_tiles(3)}) {
    for (const double late : {1.0, 100.0}) {
      spec.late = late;
      GpuCase c(spec);
      c.run();
      const Outputs once = outputs_of(c.host());
      for (int i = 0; i < 3; ++i) {
        c.run();
        EXPECT_EQ(outputs_of(c.host()), once);
      }
    }
  }
}

TEST_F(GpuPlan, RunsOnTheLegacyDefaultStream) {
  GpuCase c(spec_of_plan(4));
  const AttentionPlan plan(c.tensors(), c.options());
  c.upload();
  plan.run(c.tensors(), {.workspace = c.workspace()});
  c.download();  // waits for that stream
  judge(c.host());
}

// Each worker has a case of its own and runs it again and again, all with one plan.
void run_at_once(const AttentionPlan& plan, std::vector<std::unique_ptr<GpuCase>>& cases, bool one_thread) {
  std::vector<Outputs> expected;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const auto& c : cases) {
    c->run();
    expected.push_back(outputs_of(c->host()));
    streams.push_back(std::make_unique<Stream>());
    c->upload();
  }
  const int times = reduced() ? 5 : 50;
  const auto run = [&](std::size_t i) {
    plan.run(cases[i]->tensors(), {.workspace = cases[i]->workspace(), .stream = streams[i]->handle()});
  };
  const auto work = [&](std::size_t i) {
    for (int n = 0; n < times; ++n) run(i);
  };
  if (one_thread) {
    for (int n = 0; n < times; ++n) {
      for (std::size_t i = 0; i < cases.size(); ++i) run(i);
    }
  } else {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < cases.size(); ++i) threads.emplace_back(work, i);
    for (std::thread& thread : threads) thread.join();
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    streams[i]->wait();
    cases[i]->download();
    EXPECT_EQ(outputs_of(cases[i]->host()), expected[i]) << i;
  }
}

TEST_F(GpuPlan, RunsOnSeveralStreamsAndThreadsAtOnce) {
  for (const auto& [drawn, layout] : {std::pair(false, Layout::bshd), {true, Layout::bshd}, {true, Layout::gaps}}) {
    std::vector<std::unique_ptr<GpuCase>> cases;
    for (std::uint64_t seed = 10; seed < 14; ++seed) {
      CaseSpec spec = drawn ? many_tiles(seed) : spec_of_plan(seed);
      spec.layout = layout;
      cases.push_back(std::make_unique<GpuCase>(spec));
    }
    const AttentionPlan plan(cases[0]->tensors(), cases[0]->options());
    EXPECT_EQ(plan.workspace_bytes() > 0, drawn);
    EXPECT_EQ(plan.explain().find("is copied into the workspace") != std::string::npos, layout == Layout::gaps);
    for (const bool one_thread : {true, false}) run_at_once(plan, cases, one_thread);
  }
}

// Late scores make tiles run twice: that too must need no host.
TEST_F(GpuPlan, IsCapturedInAGraphAndReplayed) {
  for (const auto& [drawn, late, layout] : {std::tuple(false, 1.0, Layout::bshd),
                                            {false, 100.0, Layout::bshd},
                                            {true, 1.0, Layout::bshd},
                                            {true, 100.0, Layout::bshd},
                                            {true, 100.0, Layout::gaps}}) {
    CaseSpec spec = drawn ? many_tiles(20) : spec_of_plan(20), changed = drawn ? many_tiles(21) : spec_of_plan(21);
    spec.late = changed.late = late;
    spec.layout = changed.layout = layout;
    GpuCase c(spec), other(changed);
    const AttentionPlan plan(c.tensors(), c.options());
    EXPECT_EQ(plan.explain().find("is copied into the workspace") != std::string::npos, layout == Layout::gaps);
    void* const workspace = c.workspace(plan.workspace_bytes());
    const Stream stream;
    const cuda::ContextScope scope(0);
    const cuda::Driver& cu = cuda::driver();
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec executable = nullptr;
    cuda::check(cu.StreamBeginCapture(stream.handle(), cuda::CUstreamCaptureMode::global), "beginning a capture");
    plan.run(c.tensors(), {.workspace = workspace, .stream = stream.handle()});
    cuda::check(cu.StreamEndCapture(stream.handle(), &graph), "ending a capture");
    cuda::check(cu.GraphInstantiate(&executable, graph, 0), "making a graph");
    const auto replay = [&] {
      c.upload();
      cuda::check(cu.GraphLaunch(executable, stream.handle()), "launching a graph");
      stream.wait();
      c.download();
      judge(c.host());
    };
    replay();
    for (auto [to, from] : {std::pair{&c.host().q, &other.host().q}, {&c.host().k, &other.host().k}}) {
      std::ranges::copy(from->memory(), to->memory().begin());
    }
    replay();
    cu.GraphExecDestroy(executable);
    cu.GraphDestroy(graph);
  }
}

/// A copy of a [2, 1, rows, columns] or [1, 2, rows, columns] tensor on the GPU, whose two halves lie more than 2^32
/// elements apart: offsets that 32 bits hold wrap.
class FarApart {
 public:
  explicit FarApart(const ConstTensorView& host)
      : host_(host), half_bytes_(host.count() / 2 * size_of(host.dtype)), memory_(0, far_bytes() + half_bytes_) {
    copy([&](std::byte* far, std::byte* near) { cuda::copy_and_wait(0, far, near, half_bytes_); });
  }

  TensorView view() const {
    TensorView view(memory_.data(), host_.dtype, host_.shape, kGpu);
    view.strides[view.shape[0] == 2 ? 0 : 1] = kFar;
    return view;
  }
  void download() {
    copy([&](std::byte* far, std::byte* near) { cuda::copy_and_wait(0, near, far, half_bytes_); });
  }

 private:
  static constexpr std::int64_t kFar = (std::int64_t{1} << 32) + 64;

  std::size_t far_bytes() const { return static_cast<std::size_t>(kFar * size_of(host_.dtype)); }
  template <class F>
  void copy(F&& f) {
    auto* near = static_cast<std::byte*>(const_cast<void*>(host_.data));
    for (std::size_t half = 0; half < 2; ++half) {
      f(static_cast<std::byte*>(memory_.data()) + half * far_bytes(), near + half * half_bytes_);
    }
  }

  ConstTensorView host_;
  std::size_t half_bytes_;
  cuda::DeviceMemory memory_;
};

// Keys are attended, but by the mask the first 64 queries attend none.
TEST_F(GpuPlan, FollowsStridesThat32BitsDoNotHold) {
  for (const bool batches : {true, false}) {
    CaseSpec spec = spec_of_plan(23, "");
    spec.batch = batches ? 2 : 1;
    spec.kv_heads = batches ? 1 : 2;
    spec.group = 1;
    spec.q_rows = 130;
    spec.kv_rows = 70;
    spec.layout = Layout::bhsd;
    GpuCase c(spec);
    c.options().mask_mod = leaf::q_idx() >= 64;
    const AttentionTensors host = c.host().tensors();
    FarApart q(host.q), k(host.k), v(host.v), o(host.o), lse(*host.lse);
    const AttentionTensors far = {q.view(), k.view(), v.view(), o.view(), lse.view()};
    const AttentionPlan plan(far, c.options());
    plan.run(far);
    o.download();
    lse.download();
    judge(c.host());
  }
}

/// A copy of a [1, 1, rows, columns] tensor on the GPU with 8 MB from row to row, before which no memory is.
class RowsApart {
 public:
  explicit RowsApart(const ConstTensorView& host) : host_(host) {
    const auto rows = static_cast<std::size_t>(host.shape[2]);
    const cuda::DeviceMemory before(0, (rows + 1) * kApart);
    memory_ = cuda::DeviceMemory(0, rows * kApart);
    copy([&](std::byte* there, std::byte* here) { cuda::copy_and_wait(0, there, here, row_bytes()); });
  }

  TensorView view() const {
    TensorView view(memory_.data(), host_.dtype, host_.shape, kGpu);
    view.strides[2] = static_cast<std::int64_t>(kApart) / size_of(host_.dtype);
    return view;
  }
  void download() {
    copy([&](std::byte* there, std::byte* here) { cuda::copy_and_wait(0, here, there, row_bytes()); });
  }

 private:
  static constexpr std::size_t kApart = std::size_t{8} << 20;

  std::size_t row_bytes() const { return static_cast<std::size_t>(host_.shape[3] * size_of(host_.dtype)); }
  template <class F>
  void copy(F&& f) {
    auto* here = static_cast<std::byte*>(const_cast<void*>(host_.data));
    for (std::size_t row = 0; row < static_cast<std::size_t>(host_.shape[2]); ++row) {
      f(static_cast<std::byte*>(memory_.data()) + row * kApart, here + row * row_bytes());
    }
  }

  ConstTensorView host_;
  cuda::DeviceMemory memory_;
};

// The tensor maps of sequences that differ begin before their tensors.
TEST_F(GpuPlan, TouchesNothingBeforeItsTensors) {
  for (const std::uint64_t seed : {41, 42, 43, 141, 142, 143, 144, 145}) {
    CaseSpec spec = spec_of_plan(seed, "");
    spec.sequences = "packed";
    spec.batch = spec.kv_heads = spec.group = 1;
    spec.q_rows = 140;
    spec.kv_rows = 100;
    spec.qk_dim = spec.v_dim = 64;
    spec.layout = Layout::bhsd;
    spec.with_lse = false;
    spec.device_lengths = seed > 100;
    GpuCase c(spec);
    const AttentionTensors host = c.host().tensors();
    RowsApart q(host.q), k(host.k), v(host.v), o(host.o);
    const AttentionTensors apart = {q.view(), k.view(), v.view(), o.view(), {}};
    const AttentionPlan plan(apart, c.options_there());
    plan.run(apart, {.workspace = c.workspace(plan.workspace_bytes())});
    o.download();
    judge(c.host());
  }
}

TEST_F(GpuPlan, AllocatesOutputsBesideTheInputs) {
  GpuCase c(spec_of_plan(30));
  c.upload();
  const Stream stream;
  c.options().stream = stream.handle();
  const AttentionTensors in = c.tensors();
  const AttentionResult result = attention(in.q, in.k, in.v, c.options(), true);
  stream.wait();
  EXPECT_EQ(result.o.view().device, kGpu);
  EXPECT_EQ(result.lse.view().device, kGpu);
  const CheckReport report = check_attention(in.q, in.k, in.v, c.options(), result.o, ConstTensorView(result.lse));
  EXPECT_TRUE(report.passed) << report.text();
  EXPECT_EQ(attention(in.q, in.k, in.v, c.options()).lse.count(), 0);
}

TEST_F(GpuPlan, SharesAWorkspaceWithOtherPlansOneRunAfterTheOther) {
  CaseSpec smaller = many_tiles(37);
  smaller.batch = 9;
  GpuCase first(many_tiles(36)), second(smaller);
  const AttentionPlan one(first.tensors(), first.options()), other(second.tensors(), second.options());
  const Stream stream;
  first.upload();
  second.upload();
  for (int n = 0; n < 3; ++n) {
    one.run(first.tensors(), {.workspace = first.workspace(), .stream = stream.handle()});
    other.run(second.tensors(), {.workspace = first.workspace(), .stream = stream.handle()});
  }
  stream.wait();
  for (GpuCase* c : {&first, &second}) {
    c->download();
    judge(c->host());
  }
}

TEST_F(GpuPlan, ExplainsItsKernel) {
  GpuCase c(spec_of_plan(33));
  const AttentionPlan plan(c.tensors(), c.options());
  EXPECT_THAT(plan.explain(), AllOf(HasSubstr("on cuda:0"), HasSubstr("forward_sm90"), HasSubstr("registers"),
                                    HasSubstr("predicted  ")));
  EXPECT_THAT(plan.explain_json(), AllOf(HasSubstr("\"registers\""), HasSubstr("\"predicted\"")));
}

TEST_F(GpuPlan, SaysHowItReachesWhatTmaDoesNotTake) {
  for (const Layout layout : {Layout::gaps, Layout::reversed}) {
    CaseSpec spec = spec_of_plan(42);
    spec.layout = layout;
    GpuCase c(spec);
    const std::string text = AttentionPlan(c.tensors(), c.options()).explain();
    EXPECT_THAT(text, AllOf(HasSubstr("q is copied into the workspace"), HasSubstr("o is stored by threads")));
  }
}

TEST_F(GpuPlan, DoesNothingForEmptyBatchesAndQueries) {
  for (const auto& [batch, rows] : {std::pair(0, 5), std::pair(2, 0)}) {
    CaseSpec spec = spec_of_plan(44, "");
    spec.batch = batch;
    spec.q_rows = rows;
    GpuCase c(spec);
    c.run_and_judge();
  }
}

}  // namespace
}  // namespace heddle::test
