// A warpgroup's tile of a streamed capture, or a part of its columns, in shared memory: 64 rows, in panels of 128 bytes
// a row and of 16 columns, swizzled over their rows. Threads read their scores' elements, 16 columns at a time.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/matrix_load.cuh"
#include "shared/panels.h"

namespace heddle {

template <auto kConfig, class Storage>
class StreamedTile {
 public:
  __device__ __forceinline__ explicit StreamedTile(ptx::Address tile) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    // A lane of ldmatrix names a row of one of four 8 x 8 matrices: upper left, lower left, upper right, lower right.
    const int row = 16 * warp + (kHalves ? lane & 15 : lane >> 2);
    const int chunk = kHalves ? lane >> 4 : (lane & 3) >> 1;  // 16 bytes, of those of 8 columns
    const int within = kHalves ? 0 : 8 * (lane & 1);
    panels_ = tile + row * 128 + (chunk ^ (row & 7)) * 16 + within;
    rest_ =
        tile + kWhole * 64 * 128 + row * kRestRow + (chunk ^ (kHalves ? (row >> 2) & 1 : (row >> 1) & 3)) * 16 + within;
  }

  /// The columns 16 i to 16 i + 15.
  __device__ __forceinline__ void load(int i) {
    constexpr int kEach = 128 / Storage::kRead / 16;  // in a panel
    const bool rest = i >= kWhole * kEach;
    // Rows begin where the bits of an offset in them are 0: columns further on are an exclusive or, and panels a sum
    // that the loads' own offset makes.
    const ptx::Address row = rest ? rest_ : panels_;
    const int panel = rest ? (i - kWhole * kEach) * (64 * kRestRow) : i / kEach * (64 * 128);
    const int first = rest ? 0 : i % kEach * Storage::kRead * 16;  // bytes
    if constexpr (kHalves) {
      ptx::load_matrices((row ^ first) + panel, words_);
    } else {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const ptx::Address from = (row ^ (first + 32 * j)) + panel;
        load_two(from, &words_[4 * j]);
        load_two(from + 8 * (rest ? kRestRow : 128),
                 &words_[4 * j + 2]);  // 8 rows further down the swizzle is the same
        seen_ |= words_[4 * j] | words_[4 * j + 2];
      }
    }
  }
  /// Before the tile is given back: TMA would overtake loads under way. A fence orders them. For f32, with four times
  /// as many loads, a predicated store that never executes but depends on a word of each load takes less time (and one
  /// register more).
  __device__ __forceinline__ void wait() const {
    if constexpr (kHalves) {
      ptx::fence_for_tma();
    } else {
      asm volatile(
          "{\n"
          ".reg .pred never;\n"
          "setp.eq.u32 never, %0, 0;\n"
          "@never st.shared.u32 [%0], %1;\n"
          "}" ::"r"(panels_),
          "r"(seen_)
          : "memory");
    }
  }
  /// The thread's score number n of these columns, as products leave them.
  __device__ __forceinline__ float value(int n) const {
    if constexpr (kHalves) return Storage::value(n % 2 == 0 ? words_[n / 2] & 0xFFFFU : words_[n / 2] >> 16);
    return __uint_as_float(words_[n]);
  }

 private:
  static constexpr bool kHalves = Storage::kRead == 2;
  static constexpr int kWhole = kConfig.streamed_columns() * Storage::kRead / 128;  // panels of 128 bytes
  static constexpr int kRestRow = shared::kStreamedRestColumns * Storage::kRead;

  __device__ __forceinline__ static void load_two(ptx::Address from, unsigned* to) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from) : "memory");
  }

  ptx::Address panels_, rest_;  // what the lane reads first in the first of them, swizzled
  unsigned words_[kHalves ? 4 : 8];
  unsigned seen_ = 0;  // f32: of each load a word
};

}  // namespace heddle
