#include "peaks/fma_peak.h"

#include <cstdint>
#include <ctime>

#include "peaks/thread_rate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peaks/fma_peak.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace heddle::peaks::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Twelve chains hide the latency on two ports. Returns the flops done.
double Chains(std::int64_t steps, float factor, float* result) {
  const hn::ScalableTag<float> d;
  constexpr int kChains = 12;
  hn::Vec<hn::ScalableTag<float>> x[kChains];
  HWY_UNROLL(16)
  for (int i = 0; i < kChains; ++i) x[i] = hn::Set(d, static_cast<float>(i));
  const auto a = hn::Set(d, factor), b = hn::Set(d, 0.001f);
  for (std::int64_t step = 0; step < steps; ++step) {
    HWY_UNROLL(16)
    for (int i = 0; i < kChains; ++i) x[i] = hn::MulAdd(x[i], a, b);
  }
  HWY_UNROLL(16)
  for (int i = 1; i < kChains; ++i) x[0] = hn::Add(x[0], x[i]);
  *result += hn::GetLane(x[0]);
  return 2.0 * kChains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(steps);
}

}  // namespace heddle::peaks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::peaks {

HWY_EXPORT(Chains);

namespace {

/// One piece of work of a thread; returns its flops.
double run_chains() {
  // A run-time factor and a kept result: the chains cannot be computed in advance or dropped.
  volatile float factor = 0.999f;
  float result = 0;
  const double flops = HWY_DYNAMIC_DISPATCH(Chains)(10000, factor, &result);
  volatile float kept = result;
  (void)kept;
  return flops;
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double fma_peak_gflops(double milliseconds) {
  const double begin = thread_seconds();
  double flops = 0, seconds = 0;
  do {
    flops += run_chains();
    seconds = thread_seconds() - begin;
  } while (seconds < milliseconds * 1e-3);
  return flops / seconds * 1e-9;
}

double fma_peak_gflops(int threads, double milliseconds) {
  return 1e-9 * rate_on_threads(threads, milliseconds * 1e-3, run_chains);
}

}  // namespace heddle::peaks
#endif  // HWY_ONCE
