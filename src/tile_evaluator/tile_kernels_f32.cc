// The tile kernels over float, for each SIMD target. Each type has a file, so that both compile at a time: Highway
// compiles a file once for every target.
#include "tile_evaluator/tile_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tile_evaluator/tile_kernels_f32.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include <hwy/highway.h>

#include "tile_evaluator/tile_draws-inl.h"
#include "tile_evaluator/tile_ops-inl.h"
#include "tile_evaluator/tile_reads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

const TileKernels* KernelsF32() {
  static const TileKernels kernels = [] {
    TileKernels all = OpKernels<float>();
    all.read = ReadKernels<float>();
    all.draw_row = DrawRow<float>;
    return all;
  }();
  return &kernels;
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::cpu {

HWY_EXPORT(KernelsF32);
const TileKernels& tile_kernels_f32() { return *HWY_DYNAMIC_DISPATCH(KernelsF32)(); }

}  // namespace heddle::cpu
#endif
