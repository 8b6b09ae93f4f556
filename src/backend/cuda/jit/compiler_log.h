// NVRTC's log about a kernel: the resources that it takes, and whether they are acceptable.
#pragma once

#include <string>
#include <string_view>

namespace heddle::cuda::jit {

/// -1: not known.
struct Resources {
  int registers = -1, spill_bytes = -1, stack_bytes = -1, static_shared_bytes = -1;
  bool complete() const { return registers >= 0 && spill_bytes >= 0 && stack_bytes >= 0 && static_shared_bytes >= 0; }
  bool operator==(const Resources&) const = default;
};

/// From the lines that `--ptxas-options=-v` prints: registers, stack and shared memory of the largest kernel, spilled
/// bytes (stores and loads) of all functions together. A figure that the log does not give for each kernel stays -1.
Resources resources_in(std::string_view log);

/// The log's lines that say that the tensor cores are serialised (C7509 to C7516, C7518, C7520), that `setmaxnreg` was
/// ignored (C7508), or that an instruction does not fit its registers (C76xx), found by their words and by their
/// numbers; joined by "; ", empty when there is none. A wait or an arrive that the compiler added (C7517, C7519) is not
/// among them.
std::string performance_losses(std::string_view log);

/// The log without its lines that say how long something took: equal kernels then have equal records.
std::string without_times(std::string_view log);

}  // namespace heddle::cuda::jit
