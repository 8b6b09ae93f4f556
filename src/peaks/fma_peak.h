// How many multiply-adds this machine does now, on its widest vectors: the yardstick of the CPU benchmarks. Measure it
// beside each window of theirs, since neighbours on a shared machine move it.
#pragma once

namespace heddle::peaks {

/// GFLOP/s of independent f32 fused multiply-adds in registers, over about `milliseconds` of the calling thread's
/// processor time.
double fma_peak_gflops(double milliseconds);

/// GFLOP/s of so many threads at once, over about `milliseconds` of the time that passes.
double fma_peak_gflops(int threads, double milliseconds);

}  // namespace heddle::peaks
