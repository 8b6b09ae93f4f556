// Host time of AttentionPlan::run, and of attention_into() with a warm plan cache: the checks of a run alone, on a tiny
// problem on the CPU; and, given a GPU, a run enqueued there with all pointers changed from run to run. Microseconds of
// one run, the median of rounds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/driver/driver.h"
#include "heddle/attention.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/mods.h"
#include "problem/check_run.h"

namespace {

using namespace heddle;

constexpr int kRounds = 21;

/// Microseconds of one call: the median over rounds of `count` calls. `between` runs after each round, uncounted.
template <class Call, class Between>
double measure(int count, Call&& call, Between&& between) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) call(i);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    rounds.push_back(time.count() / count);
    between();
  }
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2];
}

/// Tensors of one run and what owns them.
struct Set {
  Tensor q, k, v, o, lse;
  AttentionTensors tensors() const { return {q, k, v, o, lse.view()}; }
};

Set make_set(const Device& device, DType dtype, std::int64_t rows, std::int64_t dim) {
  const auto tensor = [&](DType type, const Dims& shape) {
    const Tensor zeros = Tensor::zeros(type, shape);
    return device.kind == DeviceKind::cpu ? zeros : zeros.to(device);
  };
  const Dims shape = {2, 4, rows, dim};
  return {tensor(dtype, shape), tensor(dtype, shape), tensor(dtype, shape), tensor(dtype, shape),
          tensor(DType::f32, {2, 4, rows})};
}

std::vector<Set> make_sets(const Device& device, DType dtype, std::int64_t rows, std::int64_t dim) {
  std::vector<Set> sets;
  for (int i = 0; i < 8; ++i) sets.push_back(make_set(device, dtype, rows, dim));
  return sets;
}

AttentionOptions options_of(bool masked) {
  AttentionOptions options;
  options.threads = 1;
  if (masked) options.mask_mod = mods::causal() & (leaf::kv_idx() < param("limit", ExprType::i32));
  options.bindings.params["limit"] = 1 << 20;
  return options;
}

void measure_checks(bool masked) {
  const std::vector<Set> sets = make_sets({}, DType::bf16, 128, 64);
  const AttentionOptions options = options_of(masked);
  const problem::AttentionProblem problem = problem::validate(sets[0].tensors(), options);
  const problem::PlannedTensors planned(sets[0].tensors());
  std::vector<AttentionTensors> given;
  for (const Set& set : sets) given.push_back(set.tensors());
  const double time = measure(
      20'000,
      [&](int i) {
        const AttentionTensors& tensors = given[static_cast<std::size_t>(i) % given.size()];
        if (!problem::fits_planned(problem, options.bindings, options.bindings)) std::abort();
        problem::validate_run(problem, planned, tensors, options, options.bindings);
      },
      [] {});
  fmt::print("{:<28}{:<10}{:8.3f} us\n", "checks of a run", masked ? "masked" : "full", time);
}

/// attention_into() with a warm plan cache, in place of a plan's own runs.
void measure_calls(const Device& device, bool masked, DType dtype, std::int64_t rows, std::int64_t dim) {
  const bool on_gpu = device.kind == DeviceKind::cuda;
  const std::vector<Set> sets = make_sets(device, dtype, rows, dim);
  const AttentionOptions options = options_of(masked);
  const auto wait = [&] {
    if (on_gpu) cuda::check(cuda::driver().CtxSynchronize(), "waiting for the GPU");
  };
  const double time = measure(
      on_gpu ? 200 : 2000,
      [&](int i) {
        const Set& set = sets[static_cast<std::size_t>(i) % sets.size()];
        attention_into(set.q, set.k, set.v, set.o, set.lse.view(), options);
      },
      wait);
  fmt::print("{:<28}{:<10}{:8.3f} us\n", on_gpu ? "a call enqueued on a GPU" : "a call of 1 x 1 on the CPU",
             masked ? "masked" : "full", time);
}

void measure_runs(const Device& device, bool masked, DType dtype, std::int64_t rows, std::int64_t dim) {
  const bool on_gpu = device.kind == DeviceKind::cuda;
  const std::vector<Set> sets = make_sets(device, dtype, rows, dim);
  const AttentionOptions options = options_of(masked);
  const AttentionPlan plan(sets[0].tensors(), options);
  std::vector<AttentionTensors> given;
  for (const Set& set : sets) given.push_back(set.tensors());
  const Tensor workspace = Tensor::empty_on(device, DType::u8, {plan.workspace_bytes()});
  const RunOptions run = {.workspace = plan.workspace_bytes() > 0 ? workspace.data() : nullptr,
                          .bindings = &options.bindings};
  const auto wait = [&] {
    if (on_gpu) cuda::check(cuda::driver().CtxSynchronize(), "waiting for the GPU");
  };
  // Fewer launches a round than a stream holds: none waits for the GPU.
  const double time = measure(
      on_gpu ? 200 : 2000, [&](int i) { plan.run(given[static_cast<std::size_t>(i) % given.size()], run); }, wait);
  fmt::print("{:<28}{:<10}{:8.3f} us\n", on_gpu ? "a run enqueued on a GPU" : "a run of 1 x 1 on the CPU",
             masked ? "masked" : "full", time);
}

}  // namespace

int main() try {
  for (const bool masked : {false, true}) measure_checks(masked);
  for (const bool masked : {false, true}) measure_runs({}, masked, DType::f32, 1, 1);
  for (const bool masked : {false, true}) measure_calls({}, masked, DType::f32, 1, 1);
  if (const std::string reason = missing(DeviceKind::cuda); !reason.empty()) {
    fmt::print("no GPU: {}\n", reason);
    return 0;
  }
  const cuda::ContextScope scope(0);
  for (const bool masked : {false, true}) measure_runs({DeviceKind::cuda, 0}, masked, DType::bf16, 512, 128);
  for (const bool masked : {false, true}) measure_calls({DeviceKind::cuda, 0}, masked, DType::bf16, 512, 128);
} catch (const heddle::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
