#include "backend/cpu/cpu_caps.h"

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "backend/cpu/matrix_unit.h"
#include "base/parallel.h"

namespace heddle::cpu {
namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      const std::size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "CPU";
}

// A size that the system does not know is reported as 0 or -1; `fallback` then stands.
std::int64_t cache_bytes(int name, std::int64_t fallback) {
  const long bytes = sysconf(name);
  return bytes > 0 ? bytes : fallback;
}

device::Caps find_caps() {
  device::Caps caps;
  caps.name = processor_name();
  // The best target that was compiled and that the machine has: what dynamic dispatch picks.
  const std::int64_t target = hwy::SupportedAndGeneratedTargets().front();
  caps.simd_target = hwy::TargetName(target);
  caps.cores = base::available_cores();
  caps.vector_bytes = target == HWY_AVX3 ? 64 : target == HWY_AVX2 ? 32 : target == HWY_SCALAR ? 4 : 16;
  caps.vector_registers = target == HWY_AVX3 || target == HWY_NEON ? 32 : 16;
  caps.matrix_unit = find_matrix_unit();
  caps.l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, caps.l1_bytes);
  caps.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, caps.l2_bytes);
  caps.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, caps.l3_bytes);
  caps.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return caps;
}

}  // namespace

const device::Caps& cpu_caps() {
  static const device::Caps caps = find_caps();
  return caps;
}

}  // namespace heddle::cpu
