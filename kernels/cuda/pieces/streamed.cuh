// A warpgroup's tile of a streamed capture in shared memory: 64 rows x kv_block, in panels of 128 bytes a row, with the
// 128-byte swizzle. Threads read their scores' elements, 16 columns at a time.
#pragma once

#include "pieces/memory.cuh"

namespace heddle {

template <ForwardSm90Config kConfig, class Storage>
class StreamedTile {
 public:
  __device__ __forceinline__ explicit StreamedTile(ptx::Address tile) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    // A lane of ldmatrix names a row of one of four 8 x 8 matrices: upper left, lower left, upper right, lower right.
    const int row = 16 * warp + (kHalves ? lane & 15 : lane >> 2);
    row_ = tile + row * 128;
    column_ = kHalves ? (lane >> 4) ^ (row & 7) : ((lane & 3) >> 1) ^ (row & 7);
    within_ = kHalves ? 0 : 8 * (lane & 1);
  }

  /// The columns 16 i to 16 i + 15.
  __device__ __forceinline__ void load(int i) {
    if constexpr (kHalves) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words_[0]), "=r"(words_[1]), "=r"(words_[2]), "=r"(words_[3])
                   : "r"(at(i / 4, 2 * (i % 4)))
                   : "memory");
    } else {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const ptx::Address from = at(i / 2, 4 * (i % 2) + 2 * j) + within_;
        load_two(from, &words_[4 * j]);
        load_two(from + 8 * 128, &words_[4 * j + 2]);  // 8 rows further down the swizzle is the same
      }
    }
  }
  /// Of these columns the thread's score number n, as products leave them.
  __device__ __forceinline__ float value(int n) const {
    if constexpr (kHalves) return Storage::value(n % 2 == 0 ? words_[n / 2] & 0xFFFFU : words_[n / 2] >> 16);
    return __uint_as_float(words_[n]);
  }

 private:
  static constexpr bool kHalves = Storage::kRead == 2;

  /// 16 bytes of the lane's row in a panel.
  __device__ __forceinline__ ptx::Address at(int panel, int chunk) const {
    return row_ + panel * 64 * 128 + ((chunk ^ column_) * 16);
  }
  __device__ __forceinline__ static void load_two(ptx::Address from, unsigned* to) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from) : "memory");
  }

  ptx::Address row_;
  int column_, within_;
  unsigned words_[kHalves ? 4 : 8];
};

}  // namespace heddle
