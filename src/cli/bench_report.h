// The report of `heddle bench`.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench_cases.h"
#include "output.h"

namespace heddle::cli {

struct BenchReport {
  std::string machine;
  int threads = 1;
  double seconds = 0;
  std::vector<Peaks> peaks;
  std::size_t read_bytes = 0;
  std::vector<CaseRun> cases;
};

/// A table of the peaks, and one of the cases.
std::string bench_text(const BenchReport& report);
Json bench_json(const BenchReport& report);
/// Shares of the peak over lengths: a panel for each pass and dtype, a curve for each head dimension and mask.
std::string bench_svg(const BenchReport& report);

}  // namespace heddle::cli
