#include "backend/cpu/cpu_caps.h"

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
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

// "32768K"; 0 where it is no such text.
std::int64_t bytes_of(const std::string& text) {
  std::int64_t count = 0;
  char unit = ' ';
  if (!(std::istringstream(text) >> count >> unit) || count <= 0) return 0;
  return unit == 'K' ? count << 10 : unit == 'M' ? count << 20 : 0;
}

std::string first_word(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
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
  caps.l3_bytes = l3_bytes_in("/sys/devices/system/cpu/cpu0/cache/");
  if (caps.l3_bytes == 0) caps.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0);
  caps.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return caps;
}

}  // namespace

std::int64_t l3_bytes_in(const std::string& folder) {
  for (int i = 0; i < 8; ++i) {
    const std::string index = folder + "index" + std::to_string(i) + "/";
    if (first_word(index + "level") == "3") return bytes_of(first_word(index + "size"));
  }
  return 0;
}

const device::Caps& cpu_caps() {
  static const device::Caps caps = find_caps();
  return caps;
}

}  // namespace heddle::cpu
