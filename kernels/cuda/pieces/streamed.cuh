// A warpgroup's tile of a streamed capture in shared memory: 64 rows x kv_block, in panels of 128 bytes a row and of 16
// columns, swizzled over their rows. Threads read their scores' elements, 16 columns at a time.
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
    const int chunk = kHalves ? lane >> 4 : (lane & 3) >> 1;  // 16 bytes, of those of 8 columns
    within_ = kHalves ? 0 : 8 * (lane & 1);
    panels_ = tile + row * 128;
    chunk_ = chunk ^ (row & 7);
    const int rest_chunk = chunk ^ (kHalves ? (row >> 2) & 1 : (row >> 1) & 3);
    rest_ = tile + kWhole * 64 * 128 + row * kRestRow;
    rest_chunk_ = rest_chunk;
  }

  /// The columns 16 i to 16 i + 15.
  __device__ __forceinline__ void load(int i) {
    constexpr int kEach = 128 / Storage::kRead / 16;  // in a panel
    const bool rest = i >= kWhole * kEach;
    const ptx::Address row = rest ? rest_ + (i - kWhole * kEach) * (64 * kRestRow) : panels_ + i / kEach * (64 * 128);
    const int first = rest ? 0 : i % kEach * (Storage::kRead), of_lane = rest ? rest_chunk_ : chunk_;
    if constexpr (kHalves) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words_[0]), "=r"(words_[1]), "=r"(words_[2]), "=r"(words_[3])
                   : "r"(row + (first ^ of_lane) * 16)
                   : "memory");
    } else {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const ptx::Address from = row + ((first + 2 * j) ^ of_lane) * 16 + within_;
        load_two(from, &words_[4 * j]);
        load_two(from + 8 * (rest ? kRestRow : 128),
                 &words_[4 * j + 2]);  // 8 rows further down the swizzle is the same
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
  static constexpr int kWhole = kConfig.kv_block * Storage::kRead / 128;  // panels of 128 bytes
  static constexpr int kRestRow = shared::kStreamedRestColumns * Storage::kRead;

  __device__ __forceinline__ static void load_two(ptx::Address from, unsigned* to) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from) : "memory");
  }

  ptx::Address panels_, rest_;  // the lane's row in the first of them
  int chunk_, rest_chunk_;      // which of a row's 16 bytes it reads first, swizzled
  int within_;
  unsigned words_[kHalves ? 4 : 8];
};

}  // namespace heddle
