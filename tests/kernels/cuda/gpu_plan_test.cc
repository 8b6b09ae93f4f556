// AttentionPlan on a GPU: other memory each run, streams, threads, CUDA graphs, updates; and what it refuses.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "backend/cuda/driver/driver.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "count_allocations.h"
#include "expect_error.h"
#include "heddle/devices.h"
#include "heddle/mods.h"
#include "kernels/cuda/gpu_case.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class GpuPlan : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = gpu_missing(); !reason.empty()) GTEST_SKIP() << reason;
    if (gpu_backend() != BackendChoice::cuda) GTEST_SKIP() << "of a GPU alone";
  }
};

CaseSpec spec_of(std::uint64_t seed, const char* mask = "causal") {
  CaseSpec spec;
  spec.seed = seed;
  spec.batch = 2;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.q_rows = 300;
  spec.kv_rows = 333;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  spec.mask = mask;
  return spec;
}

/// More tiles than any GPU has multiprocessors: they are drawn, for which a run needs its workspace.
CaseSpec many_tiles(std::uint64_t seed) {
  CaseSpec spec = spec_of(seed);
  spec.batch = 12;
  spec.group = 8;
  spec.q_rows = 130;
  spec.kv_rows = 140;
  return spec;
}

TEST_F(GpuPlan, RunsOnOtherMemoryEachTime) {
  GpuCase first(spec_of(1)), second(spec_of(2));
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
  GpuCase c(spec_of(5, "window_by_params"));
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
  for (CaseSpec spec : {spec_of(3), many_tiles(3)}) {
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
  GpuCase c(spec_of(4));
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
      CaseSpec spec = drawn ? many_tiles(seed) : spec_of(seed);
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
    CaseSpec spec = drawn ? many_tiles(20) : spec_of(20), changed = drawn ? many_tiles(21) : spec_of(21);
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

// Where keys are attended and, by the mask, the first 64 queries attend none.
TEST_F(GpuPlan, FollowsStridesThat32BitsDoNotHold) {
  for (const bool batches : {true, false}) {
    CaseSpec spec = spec_of(23, "");
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
    CaseSpec spec = spec_of(seed, "");
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
  GpuCase c(spec_of(30));
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

TEST_F(GpuPlan, FollowsItsParamsWhenUpdated) {
  GpuCase c(spec_of(31, "window_by_params"));
  AttentionPlan plan(c.tensors(), c.options());
  Bindings wide = c.options().bindings;
  wide.params["before"] = 222;
  expect_error([&] { plan.run(c.tensors(), {.workspace = c.workspace(), .bindings = &wide}); },
               ErrorCode::invalid_argument, HasSubstr("before"));
  plan.update(wide);
  c.options().bindings = wide;
  c.upload();
  plan.run(c.tensors(), {.workspace = c.workspace()});
  c.download();
  judge(c.host());
}

TEST_F(GpuPlan, DrawsTilesThatAnUpdateLetsAttend) {
  CaseSpec spec = many_tiles(35);
  spec.mask = "";
  GpuCase c(spec);
  c.options().mask_mod = leaf::q_idx() < param("limit", ExprType::i32);
  c.options().bindings.params["limit"] = 0;
  AttentionPlan plan(c.tensors(), c.options());
  EXPECT_EQ(plan.workspace_bytes(), 64);
  c.options().bindings.params["limit"] = 100;
  plan.update(c.options().bindings);
  c.upload();
  plan.run(c.tensors(), {.workspace = c.workspace()});
  c.download();
  judge(c.host());
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

TEST_F(GpuPlan, ReadsCapturesOfMasksThere) {
  GpuCase c(spec_of(32, "documents"));
  const Tensor ids = Tensor::adopt(TensorView(const_cast<void*>(c.options().bindings.captures["ids"].data), DType::i64,
                                              c.options().bindings.captures["ids"].shape),
                                   nullptr)
                         .to(kGpu);
  AttentionOptions on_gpu = c.options();
  on_gpu.bindings.captures["ids"] = ids;
  const AttentionPlan plan(c.tensors(), on_gpu);
  c.upload();
  plan.run(c.tensors(), {.workspace = c.workspace()});
  c.download();
  judge(c.host());
}

/// Documents of another layout in the same memory.
void change_documents(std::vector<std::int64_t>& ids, std::int64_t length) {
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i) / length;
}

// A mask's bits stay the planned ones until an update, which brings others without a compilation: with other rows of
// blocks, more partial ones than before, and captures elsewhere.
TEST_F(GpuPlan, FollowsCapturesOfItsMaskWhenUpdated) {
  for (const char* stored : {"256M", "0"}) {
    const ScopedVariable limit("HEDDLE_MASK_BYTES", stored);
    GpuCase c(spec_of(34, "documents"));
    const Dims shape = c.options().bindings.captures["ids"].shape;
    std::vector<std::int64_t> ids(static_cast<std::size_t>(shape[0]));
    c.options().bindings.captures["ids"] = {ids.data(), DType::i64, shape};
    AttentionOptions there = c.options();
    const cuda::DeviceMemory first(0, ids.size() * sizeof ids[0]), second(0, ids.size() * sizeof ids[0]);
    const auto place = [&](const cuda::DeviceMemory& memory, std::int64_t length) {
      change_documents(ids, length);
      cuda::copy_and_wait(0, memory.data(), ids.data(), memory.bytes());
      there.bindings.captures["ids"] = {memory.data(), DType::i64, shape, kGpu};
    };
    place(first, 50);
    AttentionPlan plan(c.tensors(), there);
    EXPECT_THAT(plan.explain(), HasSubstr(*stored == '0' ? "are found in each run" : "partial blocks are stored"));
    const auto run = [&] {
      c.upload();
      plan.run(c.tensors(), {.workspace = c.workspace()});
      c.download();
      judge(c.host());
    };
    run();
    const std::int64_t compiled = cuda::jit::counts().compiled;
    for (const auto& [memory, length] : {std::pair(&first, std::int64_t{7}), {&second, std::int64_t{100}}}) {
      place(*memory, length);
      plan.update(there.bindings);
      run();
    }
    EXPECT_EQ(cuda::jit::counts().compiled, compiled);
  }
}

TEST_F(GpuPlan, ExplainsItsKernel) {
  GpuCase c(spec_of(33));
  const AttentionPlan plan(c.tensors(), c.options());
  EXPECT_THAT(plan.explain(), AllOf(HasSubstr("on cuda:0"), HasSubstr("forward_sm90"), HasSubstr("registers"),
                                    HasSubstr("predicted  ")));
  EXPECT_THAT(plan.explain_json(), AllOf(HasSubstr("\"registers\""), HasSubstr("\"predicted\"")));
}

// A faulty run is refused before anything is launched: the outputs stay as they were.
void expect_refused(GpuCase& c, const std::function<void(AttentionTensors&)>& spoil, ErrorCode code,
                    const testing::Matcher<std::string>& sentence) {
  AttentionTensors tensors = c.tensors();
  const AttentionPlan plan(tensors, c.options());
  spoil(tensors);
  c.upload();
  const Outputs before = outputs_of(c.host());
  expect_error([&] { plan.run(tensors, {.workspace = c.workspace()}); }, code, sentence);
  c.download();
  EXPECT_EQ(outputs_of(c.host()), before);
}

template <class Void>
Void* moved(Void* data, std::int64_t bytes) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + bytes;
}

TEST_F(GpuPlan, RefusesMisalignedMemory) {
  GpuCase c(spec_of(40));
  const auto refused = [&](const std::function<void(AttentionTensors&)>& spoil, const char* name) {
    expect_refused(c, spoil, ErrorCode::invalid_argument, AllOf(HasSubstr(name), HasSubstr("16")));
  };
  refused([](AttentionTensors& t) { t.q.data = moved(t.q.data, 2); }, "q ");
  refused([](AttentionTensors& t) { t.k.data = moved(t.k.data, 8); }, "k ");
  refused([](AttentionTensors& t) { t.v.data = moved(t.v.data, 14); }, "v ");
  refused([](AttentionTensors& t) { t.o.data = moved(t.o.data, 4); }, "o ");
}

TEST_F(GpuPlan, RefusesMemoryThatIsElsewhere) {
  GpuCase c(spec_of(41));
  const AttentionTensors host = c.host().tensors();
  const std::string sentence = " is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted";
  expect_refused(
      c, [&](AttentionTensors& t) { t.k.data = host.k.data; }, ErrorCode::invalid_argument, "k" + sentence);
  expect_refused(
      c, [&](AttentionTensors& t) { t.lse->data = host.lse->data; }, ErrorCode::invalid_argument, "lse" + sentence);
  expect_refused(
      c, [&](AttentionTensors& t) { t.v.data = nullptr; }, ErrorCode::invalid_argument,
      HasSubstr("v is bf16 [2, 2, 333, 128] but its data is null"));
  expect_refused(
      c, [&](AttentionTensors& t) { t.o.data = const_cast<void*>(t.q.data); }, ErrorCode::invalid_argument,
      HasSubstr("o overlaps q in memory"));
  expect_refused(
      c, [&](AttentionTensors& t) { t.q.device = {}; }, ErrorCode::invalid_argument,
      "q is on the CPU; cuda:0, as planned, is accepted");
  AttentionTensors nowhere = c.tensors();
  for (ConstTensorView* view : {&nowhere.q, &nowhere.k, &nowhere.v}) view->device.index = 99;
  nowhere.o.device.index = nowhere.lse->device.index = 99;
  expect_error([&] { AttentionPlan(nowhere, c.options()); }, ErrorCode::unsupported, HasSubstr("q is on cuda:99"));
}

TEST_F(GpuPlan, RefusesWorkspacesThatAreElsewhere) {
  GpuCase c(many_tiles(45));
  const AttentionPlan plan(c.tensors(), c.options());
  ASSERT_EQ(plan.workspace_bytes(), 64);
  alignas(64) std::array<std::byte, 64> host{};
  expect_error([&] { plan.run(c.tensors()); }, ErrorCode::invalid_argument,
               HasSubstr("workspace is null; 64 bytes on cuda:0 are accepted"));
  expect_error([&] { plan.run(c.tensors(), {.workspace = host.data()}); }, ErrorCode::invalid_argument,
               "workspace is in host memory; memory of cuda:0 is accepted");
  expect_error([&] { plan.run(c.tensors(), {.workspace = moved(c.workspace(), 8)}); }, ErrorCode::invalid_argument,
               HasSubstr("64 divides"));
}

TEST_F(GpuPlan, SaysHowItReachesWhatTmaDoesNotTake) {
  for (const Layout layout : {Layout::gaps, Layout::reversed}) {
    CaseSpec spec = spec_of(42);
    spec.layout = layout;
    GpuCase c(spec);
    const std::string text = AttentionPlan(c.tensors(), c.options()).explain();
    EXPECT_THAT(text, AllOf(HasSubstr("q is copied into the workspace"), HasSubstr("o is stored by threads")));
  }
}

TEST_F(GpuPlan, RefusesWhatNoKernelTakes) {
  GpuCase c(spec_of(43));
  AttentionOptions options = c.options();
  options.backend = BackendChoice::cpu;
  expect_error([&] { AttentionPlan(c.tensors(), options); }, ErrorCode::unsupported, HasSubstr("q is on cuda:0"));
}

TEST_F(GpuPlan, DoesNothingForEmptyBatchesAndQueries) {
  for (const auto& [batch, rows] : {std::pair(0, 5), std::pair(2, 0)}) {
    CaseSpec spec = spec_of(44, "");
    spec.batch = batch;
    spec.q_rows = rows;
    GpuCase c(spec);
    c.run_and_judge();
  }
}

}  // namespace
}  // namespace heddle::test
