#include "backend/cpu/matrix_unit.h"

#include <fmt/format.h>
#include <hwy/targets.h>

#include <string>

#include "base/environment.h"
#include "heddle/error.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace heddle::cpu {
namespace {

#if defined(__x86_64__) && defined(__linux__)
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;  // edx of leaf 7
  constexpr unsigned kAvx512Bf16 = 1U << 5;                     // eax of leaf 7.1
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & kAvx512Bf16) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool has_amx() { return false; }
#endif

}  // namespace

device::MatrixUnit find_matrix_unit() {
  const std::string asked = base::value_of(base::Option::cpu_amx);
  if (!asked.empty() && asked != "auto" && asked != "off" && asked != "emulated") {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is '{}'; auto, off and emulated are accepted",
                                                         base::name_of(base::Option::cpu_amx), asked));
  }
#ifdef HWY_AVX3
  // The kernel, emulated too, is compiled for AVX-512 alone.
  const bool vectors = (hwy::SupportedAndGeneratedTargets().front() == HWY_AVX3);
#else
  const bool vectors = false;
#endif
  if (!vectors || asked == "off") return device::MatrixUnit::none;
  if (asked == "emulated") return device::MatrixUnit::emulated;
  return has_amx() ? device::MatrixUnit::amx : device::MatrixUnit::none;
}

}  // namespace heddle::cpu
