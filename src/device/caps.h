// DeviceCaps: what a machine can do, as plain data. Backends fill it; a test may write its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::device {

/// How products of bf16 are computed on the CPU: by vectors of f32; by a bit-exact stand-in of AMX, for tests; by AMX.
enum class MatrixUnit : std::uint8_t { none, emulated, amx };

struct Caps {
  std::string name;         // "Intel(R) Xeon(R) Processor"
  std::string simd_target;  // Highway's name of the target that will run: "AVX3"
  int cores = 1;
  int vector_bytes = 16;  // of that target
  int vector_registers = 16;
  MatrixUnit matrix_unit = MatrixUnit::none;
  std::int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20, l3_bytes = 0, memory_bytes = 0;
};

/// The properties of a GPU that plans read, whoever made it.
struct GpuCaps {
  int index = 0;
  int multiprocessors = 0;
  std::int64_t shared_memory_bytes = 0;  // of a block
  std::int64_t l2_bytes = 0;             // 0: not known
};

struct CudaCaps {
  int index = 0;
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t shared_memory_bytes = 0;  // of a block, opted in
  std::int64_t l2_bytes = 0, memory_bytes = 0;
  int driver_version = 0;  // 13000: what cuDriverGetVersion says

  operator GpuCaps() const { return {index, multiprocessors, shared_memory_bytes, l2_bytes}; }
};

/// The architecture that NVRTC compiles for, so that the device runs it: "sm_90a".
std::string architecture_of(const CudaCaps& caps);

struct AmdCaps {
  int index = 0;
  std::string name;          // "AMD Radeon RX 7900 XTX"
  std::string architecture;  // "gfx1100", without what stands behind a colon
  int compute_units = 0;
  std::int64_t shared_memory_bytes = 0;  // LDS of a workgroup
  std::int64_t l2_bytes = 0, memory_bytes = 0;
  int runtime_version = 0;  // 60000000: what hipRuntimeGetVersion says

  operator GpuCaps() const { return {index, compute_units, shared_memory_bytes, l2_bytes}; }
};

/// "48 KiB", "50 MiB".
std::string size_text(std::int64_t bytes);

/// The devices that an attention may be planned for.
struct Machine {
  Caps cpu;
  std::vector<CudaCaps> cuda;
  std::string cuda_missing;  // why there is none: a sentence; empty when there is one
  std::vector<AmdCaps> amd{};
  std::string amd_missing{};  // likewise

  /// There is no GPU of any kind, for this reason.
  void miss_gpus(const std::string& why) { cuda_missing = amd_missing = why; }
};

}  // namespace heddle::device
