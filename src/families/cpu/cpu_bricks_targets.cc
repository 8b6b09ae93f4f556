// The code for AMX, compiled for AVX-512 alone. Which machines run it, MatrixUnit says: no dispatch by targets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "families/cpu/cpu_bricks_targets.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

#include "families/cpu/attend_bricks-inl.h"  // empty but for AVX-512

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

void PackTheBricks(const PackBricks& pack) { PackIntoBricks(pack); }
void AttendByAmx(const Tile<float>& tile, const TileBuffers<float>& buffers) {
  AttendBricks<detail::AmxRegisters>(tile, buffers);
}
void AttendEmulated(const Tile<float>& tile, const TileBuffers<float>& buffers) {
  AttendBricks<detail::EmulatedRegisters>(tile, buffers);
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#if HWY_ARCH_X86_64 && (HWY_TARGETS & HWY_AVX3)
namespace heddle::cpu {

void pack(const PackBricks& bricks) { N_AVX3::PackTheBricks(bricks); }
void attend_bricks(const Tile<float>& tile, const TileBuffers<float>& buffers, device::MatrixUnit unit) {
  unit == device::MatrixUnit::amx ? N_AVX3::AttendByAmx(tile, buffers) : N_AVX3::AttendEmulated(tile, buffers);
}

}  // namespace heddle::cpu
#else
#include <cstdlib>

namespace heddle::cpu {

// Never called: MatrixUnit is none.
void pack(const PackBricks&) { std::abort(); }
void attend_bricks(const Tile<float>&, const TileBuffers<float>&, device::MatrixUnit) { std::abort(); }

}  // namespace heddle::cpu
#endif
#endif  // HWY_ONCE
