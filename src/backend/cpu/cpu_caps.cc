#include "backend/cpu/cpu_caps.h"

#include <fcntl.h>
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <new>
#include <string>

#include "backend/cpu/matrix_unit.h"
#include "base/parallel.h"
#include "base/uninterrupted.h"

namespace heddle::cpu {
namespace {

/// A file of the system's, whole; empty if it cannot be read. Streams would take a lack of memory for the end of the
/// file, and this is asked once a process.
std::string text_of(const char* path) {
  std::string text;
  const int file = base::uninterrupted([&] { return ::open(path, O_RDONLY | O_CLOEXEC); });
  if (file < 0) return text;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = base::uninterrupted([&] { return ::read(file, part.data(), part.size()); })) > 0;) {
    try {
      text.append(part.data(), static_cast<std::size_t>(got));
    } catch (const std::bad_alloc&) {
      ::close(file);
      throw;
    }
  }
  ::close(file);
  return text;
}

std::string processor_name() {
  const std::string info = text_of("/proc/cpuinfo");
  const std::size_t name = info.find("model name"), colon = info.find(": ", name);
  const std::size_t end = info.find('\n', name);
  if (name == std::string::npos || colon == std::string::npos || colon >= end) return "CPU";
  return info.substr(colon + 2, end - colon - 2);
}

// A size that the system does not know is reported as 0 or -1; `fallback` then stands.
std::int64_t cache_bytes(int name, std::int64_t fallback) {
  const long bytes = sysconf(name);
  return bytes > 0 ? bytes : fallback;
}

// "32768K"; 0 where it is no such text.
std::int64_t bytes_of(const std::string& text) {
  std::int64_t count = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || count <= 0 || rest == text.data() + text.size()) return 0;
  return *rest == 'K' ? count << 10 : *rest == 'M' ? count << 20 : 0;
}

std::string first_word(const std::string& path) {
  std::string text = text_of(path.c_str());
  text.resize(std::min(text.find_first_of(" \n"), text.size()));
  return text;
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
