// How many multiply-adds one core does now, on the widest vectors of the machine: the yardstick of the CPU benchmarks,
// measured beside each of their windows, since neighbours on a shared machine move it.
#pragma once

namespace heddle::bench {

/// GFLOP/s of independent f32 fused multiply-adds in registers, over about `milliseconds` of the calling thread's
/// processor time.
double fma_peak_gflops(double milliseconds);

}  // namespace heddle::bench
