// The columns of a block of keys, for a kernel whose warps hold scores as tensor cores leave them: thread `lane` of 32
// has the keys 8 j + 2 (lane % 4) + e of the block, e = 0 and 1, for all j. `Mod` is what the mod's text defines:
// Uniform, Column, column(), from_lane(). All threads of the warp must ask together.
#pragma once

#include "mods/instructions.cuh"
#include "shared/mod_values.h"

namespace heddle::ops {

/// Each thread computes the columns that it has: for little work.
template <class Mod, int kKeys>
class OwnColumns {
 public:
  __device__ __forceinline__ OwnColumns(const shared::ModValues& mod, const typename Mod::Uniform& uniform, int b,
                                        int h, int kv_first)
      : mod_(mod), uniform_(uniform), b_(b), h_(h), first_(kv_first + 2 * (threadIdx.x & 3)) {}
  __device__ __forceinline__ typename Mod::Column at(int j, int e) const {
    return Mod::column(mod_, uniform_, b_, h_, first_ + 8 * j + e);
  }

 private:
  const shared::ModValues& mod_;
  const typename Mod::Uniform& uniform_;
  int b_, h_, first_;
};

/// The warp computes each column once and passes it on: for reads and other long work. (Eight threads have the same
/// columns. If each loaded all of its columns at once, the kernel would run out of registers.)
template <class Mod, int kKeys>
class DealtColumns {
 public:
  __device__ __forceinline__ DealtColumns(const shared::ModValues& mod, const typename Mod::Uniform& uniform, int b,
                                          int h, int kv_first)
      : source_(2 * (threadIdx.x & 3)) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held_[i] = Mod::column(mod, uniform, b, h, kv_first + 32 * i + (threadIdx.x & 31));
  }
  __device__ __forceinline__ typename Mod::Column at(int j, int e) const {
    return Mod::from_lane(held_[kHeld == 1 ? 0 : j / 4], source_ + 8 * (j % 4) + e);
  }

 private:
  static constexpr int kHeld = (kKeys + 31) / 32;
  typename Mod::Column held_[kHeld];
  int source_;
};

}  // namespace heddle::ops
