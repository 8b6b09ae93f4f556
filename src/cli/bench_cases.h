// The measurements of `heddle bench`: the peaks of the machine, and attention beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "heddle/attention.h"
#include "heddle/backward.h"
#include "heddle/tensor.h"

namespace heddle::cli {

/// The middle one; of an even number the mean of the two middle ones. 0 if there are none.
double median(std::vector<double> values);

struct BenchCase {
  std::string pass;  // forward, backward or decode
  DType dtype = DType::f32;
  std::int64_t head_dim = 64;
  bool causal = false;
  std::int64_t heads = 1, queries = 1, keys = 1;  // decode: 1 query

  bool is_decode() const { return pass == "decode"; }
  /// Floating-point operations over the pairs that attend: 4 per pair and dimension, 10 in a backward.
  double flops() const;
  /// Bytes of the keys and values.
  double bytes() const;
};

/// The peak that a case's speed is divided by.
enum class Yardstick { fma, amx, read };

/// A case with its tensors and its plan.
class CaseRun {
 public:
  CaseRun(const BenchCase& bench_case, int threads);

  /// One sample of the case: the mean of runs that last 2 ms together, or one longer run. A decode is measured in turns
  /// with a plain read of its own keys and values.
  void measure();
  /// Runs once, for caches and clocks. A run so long that these do not matter counts as a sample.
  void warm_up();

  const BenchCase& bench_case() const { return case_; }
  Yardstick yardstick() const;
  std::int64_t samples() const { return std::ssize(seconds_); }
  double seconds() const { return median(seconds_); }
  double gflops() const { return case_.flops() / seconds() * 1e-9; }
  double gigabytes_per_second() const { return case_.bytes() / seconds() * 1e-9; }
  /// GB/s of the plain reads of a decode's own keys and values.
  double read_gigabytes_per_second() const { return case_.bytes() / median(read_seconds_) * 1e-9; }

 private:
  void plan_forward(const AttentionOptions& options);
  void plan_backward(const AttentionOptions& options);

  BenchCase case_;
  int threads_;
  std::vector<Tensor> tensors_;  // that the views of run_ name
  Tensor k_, v_;
  bool by_amx_ = false;
  std::function<void()> run_;
  std::vector<double> seconds_, read_seconds_;
};

/// The machine's peaks at one number of threads.
struct Peaks {
  int threads = 1;
  std::vector<double> fma{}, amx{}, read{};  // samples: GFLOP/s, GFLOP/s (none without AMX), GB/s
};

/// Measures the peaks at 1, 2, 4, ... threads below `most`, and at `most`.
class PeakRuns {
 public:
  /// `milliseconds` of each sample of multiply-adds. Allocates the memory that is read, which no cache should hold.
  PeakRuns(int most, double milliseconds);
  /// One sample of each.
  void measure();
  const std::vector<Peaks>& peaks() const { return peaks_; }
  std::size_t read_bytes() const { return memory_.size(); }

 private:
  double milliseconds_;
  bool amx_;
  std::vector<Peaks> peaks_;
  std::vector<std::byte> memory_;
};

}  // namespace heddle::cli
