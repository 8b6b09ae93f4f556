// The backward's code that is compiled once for each SIMD target, and its dispatch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "families/cpu/cpu_backward_targets.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include "families/cpu/cpu_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

void StepF32(const BackwardStep<float>& step, const StepBuffers<float>& buffers) { Step(step, buffers); }
void StepF64(const BackwardStep<double>& step, const StepBuffers<double>& buffers) { Step(step, buffers); }
void AddRowF32(const float* from, std::int64_t count, float* to) { AddRow(from, count, to); }
void AddRowF64(const double* from, std::int64_t count, double* to) { AddRow(from, count, to); }
void StorePanelsF32(const StorePanels<float>& panels) { Store(panels); }
void StorePanelsF64(const StorePanels<double>& panels) { Store(panels); }
double DotF32(const RowPair<float>& rows) { return Dot(rows); }
double DotF64(const RowPair<double>& rows) { return Dot(rows); }

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::cpu {

HWY_EXPORT(StepF32);
HWY_EXPORT(StepF64);
HWY_EXPORT(AddRowF32);
HWY_EXPORT(AddRowF64);
HWY_EXPORT(StorePanelsF32);
HWY_EXPORT(StorePanelsF64);
HWY_EXPORT(DotF32);
HWY_EXPORT(DotF64);

void step(const BackwardStep<float>& step, const StepBuffers<float>& buffers) {
  HWY_DYNAMIC_DISPATCH(StepF32)(step, buffers);
}
void step(const BackwardStep<double>& step, const StepBuffers<double>& buffers) {
  HWY_DYNAMIC_DISPATCH(StepF64)(step, buffers);
}
void add_row(const float* from, std::int64_t count, float* to) { HWY_DYNAMIC_DISPATCH(AddRowF32)(from, count, to); }
void add_row(const double* from, std::int64_t count, double* to) { HWY_DYNAMIC_DISPATCH(AddRowF64)(from, count, to); }
void store_panels(const StorePanels<float>& panels) { HWY_DYNAMIC_DISPATCH(StorePanelsF32)(panels); }
void store_panels(const StorePanels<double>& panels) { HWY_DYNAMIC_DISPATCH(StorePanelsF64)(panels); }
double dot(const RowPair<float>& rows) { return HWY_DYNAMIC_DISPATCH(DotF32)(rows); }
double dot(const RowPair<double>& rows) { return HWY_DYNAMIC_DISPATCH(DotF64)(rows); }

}  // namespace heddle::cpu
#endif  // HWY_ONCE
