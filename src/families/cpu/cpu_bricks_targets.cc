// The code for AMX, compiled for AVX-512 alone. Which machines run it, MatrixUnit says: no dispatch by targets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "families/cpu/cpu_bricks_targets.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

#include "families/cpu/attend_bricks-inl.h"    // empty but for AVX-512
#include "families/cpu/backward_bricks-inl.h"  // likewise

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

void PackTheBricks(const PackBricks& pack) { PackIntoBricks(pack); }
void PackBothWays(const PackTwoWays& pack) { detail::PackRowsTwoWays(pack); }
double DotOfRows(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count) {
  return detail::DotOfBf16(a, b, count);
}
void StepByAmx(const BackwardStep<float>& step, const BrickOperands& operands, const StepBuffers<float>& buffers,
               const BrickBuffers& bricks) {
  detail::BrickStep<detail::AmxRegisters>(step, operands, buffers, bricks).run();
}
void StepEmulated(const BackwardStep<float>& step, const BrickOperands& operands, const StepBuffers<float>& buffers,
                  const BrickBuffers& bricks) {
  detail::BrickStep<detail::EmulatedRegisters>(step, operands, buffers, bricks).run();
}
void TransposeColumns(const TransposedGradients& gradients, float* panels) {
  detail::TransposeGradients(gradients, panels);
}
void AttendByAmx(const Bundle<float>& bundle) { AttendBricks<detail::AmxRegisters>(bundle); }
void AttendEmulated(const Bundle<float>& bundle) { AttendBricks<detail::EmulatedRegisters>(bundle); }

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#if HWY_ARCH_X86_64 && (HWY_TARGETS & HWY_AVX3)
namespace heddle::cpu {

void pack(const PackBricks& bricks) { N_AVX3::PackTheBricks(bricks); }
void attend_bricks(const Bundle<float>& bundle, device::MatrixUnit unit) {
  unit == device::MatrixUnit::amx ? N_AVX3::AttendByAmx(bundle) : N_AVX3::AttendEmulated(bundle);
}
void pack(const PackTwoWays& rows) { N_AVX3::PackBothWays(rows); }
double dot_of_bf16(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count) {
  return N_AVX3::DotOfRows(a, b, count);
}
void step(const BackwardStep<float>& step, const BrickOperands& operands, const StepBuffers<float>& buffers,
          const BrickBuffers& bricks, device::MatrixUnit unit) {
  unit == device::MatrixUnit::amx ? N_AVX3::StepByAmx(step, operands, buffers, bricks)
                                  : N_AVX3::StepEmulated(step, operands, buffers, bricks);
}
void transpose(const TransposedGradients& gradients, float* panels) { N_AVX3::TransposeColumns(gradients, panels); }

}  // namespace heddle::cpu
#else
#include <cstdlib>

namespace heddle::cpu {

// Never called: MatrixUnit is none.
void pack(const PackBricks&) { std::abort(); }
void attend_bricks(const Bundle<float>&, device::MatrixUnit) { std::abort(); }
void pack(const PackTwoWays&) { std::abort(); }
double dot_of_bf16(const std::uint16_t*, const std::uint16_t*, std::int64_t) { std::abort(); }
void step(const BackwardStep<float>&, const BrickOperands&, const StepBuffers<float>&, const BrickBuffers&,
          device::MatrixUnit) {
  std::abort();
}
void transpose(const TransposedGradients&, float*) { std::abort(); }

}  // namespace heddle::cpu
#endif
#endif  // HWY_ONCE
