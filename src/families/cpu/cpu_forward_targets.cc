// The code that is compiled once for each SIMD target, and its dispatch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "families/cpu/cpu_forward_targets.cc"
#include <hwy/foreach_target.h>
// Highway's order: per-target headers after foreach_target.h.
#include "families/cpu/cpu_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

void MultiplyF32(const Product<float>& product) { Multiply(product); }
void MultiplyF64(const Product<double>& product) { Multiply(product); }
void PackKeysF32(const PackKeys<float>& keys) { Pack(keys); }
void PackKeysF64(const PackKeys<double>& keys) { Pack(keys); }
void PackValuesF32(const PackValues<float>& values) { Pack(values); }
void PackValuesF64(const PackValues<double>& values) { Pack(values); }
void AttendF32(const Bundle<float>& bundle) { Attend(bundle); }
void AttendF64(const Bundle<double>& bundle) { Attend(bundle); }
void MergePiecesF32(const Tile<float>& tile, const TileBuffers<float>& buffers) { MergePieces(tile, buffers); }
void MergePiecesF64(const Tile<double>& tile, const TileBuffers<double>& buffers) { MergePieces(tile, buffers); }

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::cpu {

HWY_EXPORT(MultiplyF32);
HWY_EXPORT(MultiplyF64);
HWY_EXPORT(PackKeysF32);
HWY_EXPORT(PackKeysF64);
HWY_EXPORT(PackValuesF32);
HWY_EXPORT(PackValuesF64);
HWY_EXPORT(AttendF32);
HWY_EXPORT(AttendF64);
HWY_EXPORT(MergePiecesF32);
HWY_EXPORT(MergePiecesF64);

void multiply(const Product<float>& product) { HWY_DYNAMIC_DISPATCH(MultiplyF32)(product); }
void multiply(const Product<double>& product) { HWY_DYNAMIC_DISPATCH(MultiplyF64)(product); }
void pack(const PackKeys<float>& keys) { HWY_DYNAMIC_DISPATCH(PackKeysF32)(keys); }
void pack(const PackKeys<double>& keys) { HWY_DYNAMIC_DISPATCH(PackKeysF64)(keys); }
void pack(const PackValues<float>& values) { HWY_DYNAMIC_DISPATCH(PackValuesF32)(values); }
void pack(const PackValues<double>& values) { HWY_DYNAMIC_DISPATCH(PackValuesF64)(values); }
void attend(const Bundle<float>& bundle) { HWY_DYNAMIC_DISPATCH(AttendF32)(bundle); }
void attend(const Bundle<double>& bundle) { HWY_DYNAMIC_DISPATCH(AttendF64)(bundle); }
void merge_pieces(const Tile<float>& tile, const TileBuffers<float>& buffers) {
  HWY_DYNAMIC_DISPATCH(MergePiecesF32)(tile, buffers);
}
void merge_pieces(const Tile<double>& tile, const TileBuffers<double>& buffers) {
  HWY_DYNAMIC_DISPATCH(MergePiecesF64)(tile, buffers);
}

}  // namespace heddle::cpu
#endif  // HWY_ONCE
