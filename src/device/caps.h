// DeviceCaps: what a machine can do, as plain data. Backends fill it; a test may write its own.
#pragma once

#include <cstdint>
#include <string>

namespace heddle::device {

struct Caps {
  std::string name;         // "Intel(R) Xeon(R) Processor"
  std::string simd_target;  // Highway's name of the target that will run: "AVX3"
  int cores = 1;
  int vector_bytes = 16;  // of that target
  int vector_registers = 16;
  std::int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20, l3_bytes = 0, memory_bytes = 0;
};

}  // namespace heddle::device
