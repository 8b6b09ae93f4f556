// Plans on the fake CUDA driver (driver/fake_driver.h), each with a mod of its own, so that each has kernels of its
// own.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "reliability/call_settings.h"

namespace heddle::test {

/// Has the library find the fake driver, and a compiler that makes kernels without code. Before its first call.
void take_fake_gpu();

/// Plans a forward or a backward, runs it twice, updates and frees it.
Call draw_on_gpu(std::mt19937_64& random, const CallSettings& settings);

/// Memory and modules that the fake driver has handed out and not got back.
struct GpuHeld {
  std::int64_t allocations = 0, modules = 0;
  std::int64_t wrong = 0;  // frees of what was not there
};
GpuHeld gpu_held();

}  // namespace heddle::test
