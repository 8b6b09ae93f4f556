// Configuration of the kernels over the portable fragments: a problem's types, its mods, the alignment of its rows, and
// the fragments of a chip.
#pragma once

#include <string_view>

#include "backend/portable/shared/forward_mma_config.h"
#include "device/caps.h"
#include "plan/access/kernel_types.h"
#include "plan/config_fields.h"
#include "plan/mods/kernel_mods.h"
#include "problem/problem.h"

namespace heddle::plan {

/// The mods as the kernels compute them: t = factor * score, or that and a term of each element (added), or the
/// score_mod of each element as it is written (mapped).
KernelMods portable_mods(const problem::AttentionProblem& problem, OfPlaces of_places = OfPlaces::left);

/// The largest power of two, in bytes, up to 16, that divides every row's address: by the strides and by the address
/// (null: any).
int row_alignment(const ConstTensorView& view);

/// The name of 16-bit, f32 or f64 storage in kernels' configurations.
shared::Storage storage_of(DType dtype);

/// The fragments that kernels are made of: `of_16_bits` for storage of 16 bits, `of_f32`, `of_f64`; `of_tf32` for f32
/// where the problem allows tf32's products.
/// copies_beside: copies into shared memory go on while a wave computes, so a ring of blocks pays.
struct MmaTarget {
  shared::FragmentKind of_16_bits, of_f32, of_tf32, of_f64;
  bool copies_beside = false;

  shared::FragmentKind of(const problem::AttentionProblem& problem, shared::Storage storage) const {
    if (storage == shared::Storage::f64) return of_f64;
    if (storage != shared::Storage::f32) return of_16_bits;
    return problem.allow_tf32 ? of_tf32 : of_f32;
  }
};
/// NVIDIA's chips, as they all are.
inline constexpr MmaTarget kNvidia = {shared::FragmentKind::mma, shared::FragmentKind::outer,
                                      shared::FragmentKind::tf32, shared::FragmentKind::fma, true};
/// The fragments of an NVIDIA chip: tensor cores multiply f64 where they are faster at it than plain multiply-adds.
MmaTarget nvidia_target(const device::CudaCaps& caps);
/// A forward kernel's configuration as a problem, its mods and the alignment of its rows (of `options`: q_rest and
/// k_rest) decide it: all but its tile and its waves.
shared::ForwardMmaConfig forward_config(const problem::AttentionProblem& problem, const KernelMods& mods,
                                        const AttentionTensors& tensors, const AttentionOptions& options,
                                        MmaTarget target);
/// The fragments of an AMD chip: "gfx1100". A chip without the matrix instructions that are known multiplies plainly.
MmaTarget amd_target(std::string_view architecture);

}  // namespace heddle::plan

#define HEDDLE_CONFIG ForwardMmaConfig
#define HEDDLE_CONFIG_FIELDS "backend/portable/shared/forward_mma_config.def"
#include "plan/config_fields.inc"
