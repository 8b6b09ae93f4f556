// How fast a computation is on the CPU, beside what the machine's multiply-adds do at that moment.
//
// It runs in windows with an FMA probe (peaks/fma_peak.h) before and after. A window counts when both probes reach 90 %
// of the best probe seen. Time is the processor time of all threads, so figures are per core, and a core that somebody
// else takes for a while does not count; `wall` is the speed of whole runs, with what waiting and other people's work
// cost.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "heddle/tensor.h"

namespace heddle::bench {

struct CpuFigures {
  double gflops, probe, ratio, wall;  // medians of the windows that count; the best probe
  std::int64_t counted, windows;
};

/// run: one run, of so many floating-point operations.
CpuFigures measure_windows(double flops, double seconds, const std::function<void()>& run);

/// The arguments of a program that measures cases: [--threads N] [--seconds S] [FILTER].
struct CpuArguments {
  int threads = 1;
  double seconds = 0.7;
  std::string filter;
};
CpuArguments cpu_arguments(int count, char** arguments);

/// The table's head, and its line of a case.
void print_head(int threads);
void print_line(const std::string& name, const CpuFigures& figures);

/// Processor time of all threads.
double process_seconds();

/// Normally distributed.
Tensor random_tensor(DType dtype, const Dims& shape, unsigned seed);

}  // namespace heddle::bench
