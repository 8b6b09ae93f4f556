#include "bench_cases.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <span>

#include "heddle/mods.h"
#include "output.h"
#include "peaks/amx_peak.h"
#include "peaks/fma_peak.h"
#include "peaks/plain_read.h"

namespace heddle::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSampleSeconds = 2e-3;  // at least; a clock's own cost is then below 0.01 %
constexpr double kNoWarmUp = 0.1;        // seconds of a first run from which it counts

template <class F>
double seconds_of(F&& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double seconds_of_one(const std::function<void()>& run) {
  int runs = 0;
  double seconds = 0;
  const auto begin = Clock::now();
  do {
    run();
    ++runs;
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (seconds < kSampleSeconds);
  return seconds / runs;
}

/// A block of normally distributed numbers, again and again: large tensors are filled at the speed of memory.
Tensor filled(DType dtype, const Dims& shape, unsigned seed) {
  constexpr std::int64_t kBlock = 1 << 15;
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Tensor numbers = Tensor::empty(DType::f32, {kBlock});
  std::generate_n(static_cast<float*>(numbers.data()), kBlock, [&] { return normal(generator); });
  const Tensor block = numbers.to(dtype);
  Tensor x = Tensor::empty(dtype, shape);
  auto* to = static_cast<std::byte*>(x.data());
  const std::int64_t bytes = x.count() * size_of(dtype), step = kBlock * size_of(dtype);
  for (std::int64_t first = 0; first < bytes; first += step) {
    std::memcpy(to + first, block.data(), static_cast<std::size_t>(std::min(step, bytes - first)));
  }
  return x;
}

/// Runs of the plan with a workspace of their own.
template <class Tensors>
std::function<void()> runs_of(const AttentionPlan& plan, const Tensors& tensors) {
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes()});
  return [plan, tensors, workspace] { plan.run(tensors, {.workspace = workspace.data()}); };
}

/// False for the stand-in of HEDDLE_CPU_AMX=emulated: its products are vectors of f32, and no AMX was measured.
bool computes_by_amx(const AttentionPlan& plan) {
  return peaks::has_amx() && Json::parse(plan.explain_json()).at("kernel").at("products") == "bf16 by AMX";
}

/// Twice the last cache, so that a pass over it finds nothing there; at least 256 MiB. The limit keeps to machines with
/// little memory; there a cache above 512 MiB holds a part.
std::size_t bytes_to_read() {
  constexpr std::size_t kLeast = std::size_t{256} << 20, kMost = std::size_t{1} << 30;
  std::size_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (const long bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0) cache = static_cast<std::size_t>(bytes);
#endif
  return std::clamp(2 * cache, kLeast, kMost);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double BenchCase::flops() const {
  const double q = static_cast<double>(queries), kv = static_cast<double>(keys);
  const double pairs = causal ? q * (q + 1) / 2 : q * kv;
  return (pass == "backward" ? 10.0 : 4.0) * static_cast<double>(heads * head_dim) * pairs;
}

double BenchCase::bytes() const { return 2.0 * static_cast<double>(heads * keys * head_dim * size_of(dtype)); }

CaseRun::CaseRun(const BenchCase& bench_case, int threads) : case_(bench_case), threads_(threads) {
  const Dims kv_shape = {1, case_.heads, case_.keys, case_.head_dim};
  k_ = filled(case_.dtype, kv_shape, 2);
  v_ = filled(case_.dtype, kv_shape, 3);
  AttentionOptions options;
  options.threads = threads;
  options.backend = BackendChoice::cpu;
  if (case_.causal) options.mask_mod = mods::causal();
  if (case_.pass == "backward") {
    plan_backward(options);
  } else {
    plan_forward(options);
  }
}

void CaseRun::plan_forward(const AttentionOptions& options) {
  const Dims q_shape = {1, case_.heads, case_.queries, case_.head_dim};
  const Tensor q = filled(case_.dtype, q_shape, 1), o = Tensor::empty(case_.dtype, q_shape);
  tensors_ = {q, o};
  const AttentionTensors tensors = {q, k_, v_, o, {}};
  const AttentionPlan plan(tensors, options);
  by_amx_ = computes_by_amx(plan);
  run_ = runs_of(plan, tensors);
}

void CaseRun::plan_backward(const AttentionOptions& options) {
  const Dims shape = {1, case_.heads, case_.queries, case_.head_dim};
  const Tensor q = filled(case_.dtype, shape, 1), d_o = filled(case_.dtype, shape, 4);
  const Tensor dq = Tensor::empty(case_.dtype, shape), dk = Tensor::empty(case_.dtype, shape),
               dv = Tensor::empty(case_.dtype, shape);
  const AttentionResult forward = attention(q, k_, v_, options, true);
  tensors_ = {q, d_o, dq, dk, dv, forward.o, forward.lse};
  const BackwardTensors tensors{
      .q = q, .k = k_, .v = v_, .o = forward.o, .lse = forward.lse, .d_o = d_o, .dq = dq, .dk = dk, .dv = dv};
  const AttentionPlan plan(tensors, options);
  by_amx_ = computes_by_amx(plan);
  run_ = runs_of(plan, tensors);
}

void CaseRun::measure() {
  if (case_.is_decode()) {
    const auto bytes_of = [](const Tensor& x) {
      return std::span(static_cast<const std::byte*>(x.data()),
                       static_cast<std::size_t>(x.count() * size_of(x.dtype())));
    };
    const auto read = [&] { peaks::plain_read(threads_, bytes_of(k_), bytes_of(v_)); };
    read();  // other cases ran since, and the first to come would fill the cache for the second
    read_seconds_.push_back(seconds_of_one(read));
  }
  seconds_.push_back(seconds_of_one(run_));
}

void CaseRun::warm_up() {
  const double seconds = seconds_of(run_);
  if (seconds >= kNoWarmUp && !case_.is_decode()) seconds_.push_back(seconds);
}

Yardstick CaseRun::yardstick() const {
  if (case_.is_decode()) return Yardstick::read;
  return by_amx_ ? Yardstick::amx : Yardstick::fma;
}

PeakRuns::PeakRuns(int most, double milliseconds)
    : milliseconds_(milliseconds), amx_(peaks::has_amx()), memory_(bytes_to_read(), std::byte{1}) {
  for (int threads = 1; threads < most; threads *= 2) peaks_.push_back({.threads = threads});
  peaks_.push_back({.threads = most});
}

void PeakRuns::measure() {
  for (Peaks& peak : peaks_) {
    peak.fma.push_back(peaks::fma_peak_gflops(peak.threads, milliseconds_));
    if (amx_) peak.amx.push_back(peaks::amx_peak_gflops(peak.threads, milliseconds_));
    const double seconds = seconds_of([&] { peaks::plain_read(peak.threads, memory_); });
    peak.read.push_back(static_cast<double>(memory_.size()) / seconds * 1e-9);
  }
}

}  // namespace heddle::cli
