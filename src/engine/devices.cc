#include "heddle/devices.h"

#include <fmt/format.h>

#include "backend/cuda/jit/jit.h"
#include "engine/machine.h"

namespace heddle {
namespace {

std::string cache_size(std::int64_t bytes) {
  constexpr std::int64_t kMebi = 1 << 20;
  return bytes >= kMebi && bytes % kMebi == 0 ? fmt::format("{} MiB", bytes / kMebi)
                                              : fmt::format("{} KiB", bytes >> 10);
}

DeviceInfo cpu_info(const device::Caps& caps) {
  return {
      .kind = "cpu",
      .name = caps.name,
      .detail = fmt::format("{}, {} floats a vector, {} cores, L1 {}, L2 {}", caps.simd_target, caps.vector_bytes / 4,
                            caps.cores, cache_size(caps.l1_bytes), cache_size(caps.l2_bytes)),
      .memory_bytes = caps.memory_bytes};
}

/// Kernels are compiled at run time: without a compiler a GPU is of no use.
std::string compiler_text() {
  const std::string missing = cuda::jit::compiler_missing();
  return missing.empty() ? "NVRTC " + cuda::jit::compiler_version() : fmt::format("no kernel compiler ({})", missing);
}

DeviceInfo cuda_info(const device::CudaCaps& caps) {
  return {.kind = "cuda",
          .name = caps.name,
          .detail = fmt::format(
              "compute capability {}.{}, {} SMs, {} shared memory a block, L2 {}, driver of CUDA {}.{}, {}", caps.major,
              caps.minor, caps.multiprocessors, cache_size(caps.shared_memory_bytes), cache_size(caps.l2_bytes),
              caps.driver_version / 1000, caps.driver_version % 1000 / 10, compiler_text()),
          .memory_bytes = caps.memory_bytes};
}

}  // namespace

std::vector<DeviceInfo> devices() {
  const device::Machine& machine = engine::machine();
  std::vector<DeviceInfo> all{cpu_info(machine.cpu)};
  for (const device::CudaCaps& caps : machine.cuda) all.push_back(cuda_info(caps));
  return all;
}

std::string cuda_missing() { return engine::machine().cuda_missing; }

std::string version() { return HEDDLE_VERSION; }

}  // namespace heddle
