// Hundreds of calls of different shapes, types, passes and families in one process, on several streams of several
// threads, in random order: with plans of their own and with kept ones, which are evicted and freed between them, and
// with workspaces that go from call to call. Each result is judged. Calls that are right alone may be wrong here:
// another call's lists, its workspace, or memory that was given back.
//
// The guarding driver (tests/backend/cuda/driver/guarding_driver.cc) puts every tensor, list and workspace between
// pages that are not mapped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heddle/backward.h"
#include "heddle/error.h"
#include "kernels/cuda/backward_capture_specs.h"
#include "kernels/cuda/gpu_backward_case.h"
#include "kernels/cuda/gpu_grid.h"
#include "kernels/portable/specs.h"

namespace heddle::test {
namespace {

/// A call whose tensors are on the GPU.
class Call {
 public:
  virtual ~Call() = default;
  virtual AttentionPlan plan() = 0;
  virtual void run(const AttentionPlan& plan, const RunOptions& options) = 0;
  /// By the one-call function, which keeps plans and workspaces.
  virtual void run_kept(void* stream) = 0;
  virtual void download_and_judge() = 0;
  virtual std::string text() const = 0;
};

class ForwardCall final : public Call {
 public:
  explicit ForwardCall(const CaseSpec& spec) : case_(spec), options_(case_.options_there()) { case_.upload(); }
  AttentionPlan plan() override { return {case_.tensors(), options_}; }
  void run(const AttentionPlan& plan, const RunOptions& options) override { plan.run(case_.tensors(), options); }
  void run_kept(void* stream) override {
    options_.stream = stream;
    attention_into(case_.tensors(), options_);
  }
  void download_and_judge() override {
    case_.download();
    test::judge(case_.host());
  }
  std::string text() const override { return const_cast<GpuCase&>(case_).host().spec().text(); }

 private:
  GpuCase case_;
  AttentionOptions options_;
};

class BackwardCall final : public Call {
 public:
  explicit BackwardCall(const BackwardSpecs& at) : case_(at), options_(case_.options_there()) {}
  AttentionPlan plan() override { return {case_.tensors(), options_}; }
  void run(const AttentionPlan& plan, const RunOptions& options) override { plan.run(case_.tensors(), options); }
  void run_kept(void* stream) override {
    options_.stream = stream;
    attention_backward_into(case_.tensors(), options_);
  }
  void download_and_judge() override {
    case_.download();
    case_.judge();
  }
  std::string text() const override { return case_.text(); }

 private:
  GpuBackwardCase case_;
  AttentionOptions options_;
};

std::vector<CaseSpec> forwards(std::uint64_t seed, int count) {
  SpecSource hopper(seed);
  PortableSpecs portable(seed + 500'000, 100'000, {DType::bf16, DType::f16, DType::f32});
  std::vector<CaseSpec> specs;
  while (std::ssize(specs) < count) {
    CaseSpec spec = specs.size() % 2 == 0 ? hopper.draw() : portable.draw();
    if (specs.size() % 2 != 0 && !fits(spec)) continue;
    spec.tile.reset();  // any kernel
    spec.ctas = 0;
    specs.push_back(spec);
  }
  return specs;
}

BackwardList backwards(std::mt19937_64& rng) {
  BackwardList all;
  const auto append = [&](const BackwardList& list) { all.insert(all.end(), list.begin(), list.end()); };
  for (const BackwardList& list : {ragged_ends(), masked(), grouped(), scored(), weighted(), normalized(), sequences(),
                                   lengths_there(), sunk(), few_rows()}) {
    append(list);
    append(widened(list));
  }
  for (const BackwardList& list : {captured_by_keys(), captured_by_rows(), captured_by_pairs(), deterministic(),
                                   dims_types_and_layouts(), wide_tiles(), wide_dims_types_and_layouts()}) {
    append(list);
  }
  std::ranges::shuffle(all, rng);
  // Another family's.
  for (std::size_t i = 0; i < all.size(); i += 4) {
    const bool reads = all[i].backward.wanted == "reads" || all[i].backward.wanted == "all";
    if (!reads) all[i].spec.q_dtype = all[i].spec.k_dtype = all[i].spec.v_dtype = DType::f32;
  }
  return all;
}

/// Calls in random order, forward and backward.
struct Drawn {
  std::optional<CaseSpec> forward;
  std::optional<BackwardSpecs> backward;
};
std::vector<Drawn> drawn(std::uint64_t seed, int count) {
  std::mt19937_64 rng(seed);
  std::vector<Drawn> all;
  for (const CaseSpec& spec : forwards(seed, count / 2)) all.push_back({spec, {}});
  while (std::ssize(all) < count) {
    for (const BackwardSpecs& at : backwards(rng)) {
      if (std::ssize(all) < count) all.push_back({{}, at});
    }
  }
  std::ranges::shuffle(all, rng);
  return all;
}

/// One thread's: two streams, a workspace each, and the calls that are under way.
class Worker {
 public:
  Worker(std::uint64_t seed, std::atomic<int>& refused) : rng_(seed), refused_(refused) {}

  void start(const Drawn& drawn) {
    UnderWay call;
    if (drawn.forward) {
      call.call = std::make_unique<ForwardCall>(*drawn.forward);
    } else {
      call.call = std::make_unique<BackwardCall>(*drawn.backward);
    }
    SCOPED_TRACE(call.call->text());
    call.lane = below(kLanes);
    try {
      enqueue(call);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      ++refused_;
      fmt::print("refused: {}\n  {}\n", error.what(), call.call->text());
      return;
    }
    under_way_.push_back(std::move(call));
    if (below(30) == 0) clear_plan_cache();
    if (under_way_.size() > 3) finish(below(under_way_.size()));
  }
  void finish_all() {
    while (!under_way_.empty()) finish(below(under_way_.size()));
  }

 private:
  static constexpr std::size_t kLanes = 2;
  struct UnderWay {
    std::unique_ptr<Call> call;
    std::optional<AttentionPlan> plan;
    std::size_t lane = 0;
  };

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(rng_() % bound); }

  void enqueue(UnderWay& under_way) {
    void* const stream = streams_[under_way.lane].handle();
    if (below(2) == 0) return under_way.call->run_kept(stream);
    under_way.plan.emplace(under_way.call->plan());
    Tensor& workspace = workspaces_[under_way.lane];
    const std::int64_t bytes = under_way.plan->workspace_bytes();
    if (workspace.count() < bytes) workspace = Tensor::empty_on(device_under_test(), DType::u8, {bytes});
    under_way.call->run(*under_way.plan, {.workspace = bytes > 0 ? workspace.data() : nullptr, .stream = stream});
    if (below(3) == 0) under_way.plan.reset();  // while its kernels run
  }

  void finish(std::size_t number) {
    const UnderWay done = std::move(under_way_[number]);
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(number));
    SCOPED_TRACE(done.call->text());
    streams_[done.lane].wait();
    done.call->download_and_judge();
  }

  std::mt19937_64 rng_;
  std::atomic<int>& refused_;
  std::array<Stream, kLanes> streams_;
  std::array<Tensor, kLanes> workspaces_;
  std::vector<UnderWay> under_way_;
};

class GpuMixedCalls : public GpuTest {
  // The planner's own choice of families; and few kept plans.
  const ScopedVariable family_{"HEDDLE_FAMILY", nullptr}, bytes_{"HEDDLE_PLAN_CACHE_BYTES", "2M"};
};

TEST_F(GpuMixedCalls, InOneProcess) {
  if (gpu_backend() != BackendChoice::cuda) GTEST_SKIP() << "asks for a GPU's streams";
  const char* given = std::getenv("HEDDLE_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoul(given, nullptr, 10) : 17;
  const std::vector<Drawn> calls = drawn(seed, reduced() ? 40 : 400);
  std::atomic<std::size_t> next = 0;
  std::atomic<int> refused = 0;
  const auto work = [&](std::uint64_t number) {
    try {
      Worker worker(seed + number, refused);
      for (std::size_t i = next++; i < calls.size(); i = next++) worker.start(calls[i]);
      worker.finish_all();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      next = calls.size();
    }
  };
  std::vector<std::thread> threads;
  const unsigned count = std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
  for (unsigned i = 1; i < count; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(50 * refused, std::ssize(calls)) << refused << " calls were refused";
}

}  // namespace
}  // namespace heddle::test
