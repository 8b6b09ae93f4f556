// Rates that hopper_rates measures, one struct a table.
#pragma once

#include <string>
#include <vector>

#include "gpu.h"

namespace heddle::bench {

/// One m64nNk16, in clocks of a multiprocessor that does nothing else. The pipe's own limit is columns / 2.
struct ProductRate {
  int columns;
  bool from_registers;  // the left operand
  int warpgroups;
  double clocks;
};
std::vector<ProductRate> product_rates(const Gpu& gpu);

/// One warp instruction on one of a multiprocessor's four schedulers, in clocks, two warps on each.
struct PipeRate {
  const char* name;
  const char* meaning;
  double alone;
  double beside;           // while a warpgroup multiplies without a pause
  double products_beside;  // the share of the tensor core's time that this warpgroup gets meanwhile
  /// Clocks of one element of one of the 32 lanes, for the whole multiprocessor.
  double clocks_an_element() const { return alone / (32 * 4); }
  /// The share of the products' time that the operation costs: time = alone + lost * time of the products.
  double lost_share() const { return (beside - alone) / (beside * products_beside); }
};
std::vector<PipeRate> pipe_rates(const Gpu& gpu);

/// TMA loads of 16 KiB tiles, eight in flight on each multiprocessor.
struct LoadRate {
  const char* what;
  int multiprocessors;
  double bytes_per_clock;   // of each
  double bytes_per_second;  // of all
};
struct MemoryRates {
  std::vector<LoadRate> loads;
  double copied_bytes_per_second;  // read and written ones
};
MemoryRates memory_rates(const Gpu& gpu, int multiprocessors);

/// Microseconds of one launch.
struct LaunchRates {
  double cpu;           // until the call returns
  double back_to_back;  // from kernel to kernel, in a stream that has enough of them
  double overlapping;   // the same where each may begin before the last has ended
  double and_wait;      // launch, run and wait for a kernel that does nothing
  double encode_map;    // cuTensorMapEncodeTiled
  double replace_address;
};
LaunchRates launch_rates(const Gpu& gpu, int multiprocessors);

/// The clock and what the tensor cores do at it.
struct ClockRate {
  const char* what;
  double clocks_per_second;
  double flops_per_second;  // 0: no products
};
std::vector<ClockRate> clock_rates(const Gpu& gpu, int multiprocessors);

}  // namespace heddle::bench
