// Fragments of f64 on tensor cores, as one warp drives them (sm_80 and later; only sm_80's and sm_90's are faster than
// plain multiply-adds): 16 rows of scores by 16 keys. All stands in shared memory as it is stored. A thread loads 16
// bytes, two neighbours, and mma takes them as depths t and t + 4, so the depth of Q K^T is in another order than the
// columns. Scores are the first operand of P V as they are: a thread's two keys of eight are t and t + 4.
//
// Shared memory serves eight threads at once. So that they meet all banks, although rows are an odd number of 16 bytes
// apart, lanes of group g have row spread(g) of eight, and of 16 columns of values the pair spread(g).
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "fragments/lane_reductions.cuh"
#include "portable/fragments/copied_blocks.cuh"
#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/plain_numbers.cuh"
#include "portable/fragments/row_copies.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

template <auto kConfig>
struct DmmaFragments : PlainNumbers<true> {
  static constexpr int kRows = 16, kKeys = 16, kOuts = 16, kOwnRows = 2, kOwnKeys = 4, kOwnOuts = 4, kOutRun = 2;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  static_assert(kConfig.storage == shared::Storage::f64 && kConfig.shared_queries && !kConfig.own_blocks);

  /// Groups 2 n and 2 n + 1, whose threads load together, have rows four apart: half of the banks each.
  static __device__ __forceinline__ int spread(int group) { return group % 2 * 4 + group / 2; }

  static __device__ __forceinline__ int own_row(int r) { return spread(lane() / 4) + 8 * r; }
  static __device__ __forceinline__ int own_key(int c) { return c / 2 * 8 + c % 2 * 4 + lane() % 4; }
  static __device__ __forceinline__ int own_out(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }
  static __device__ __forceinline__ bool first_of_row() { return lane() % 4 == 0; }

  using Scores = OwnElements<double, kOwnRows, kOwnKeys>;
  using Out = Scores;
  struct Queries {};  // in shared memory

  static __device__ __forceinline__ double row_max(double x) { return quad_max(x); }
  static __device__ __forceinline__ double row_sum(double x) { return quad_sum(x); }

  struct alignas(16) Two {
    double x[2];
  };

  class Stream : public CopiedBlocks<kConfig, RowCopies<kConfig>> {
    using Blocks = CopiedBlocks<kConfig, RowCopies<kConfig>>;
    using Blocks::memory_, Blocks::read_;

   public:
    __device__ __forceinline__ explicit Stream(char* memory)
        : Blocks(memory),
          rows_(memory + kMemory.q + (first_row() + spread(lane() / 4)) * kMemory.q_pitch + lane() % 4 * 16),
          keys_(memory + kMemory.k + spread(lane() / 4) * kMemory.k_pitch + lane() % 4 * 16),
          values_(memory + kMemory.v + lane() % 4 * kMemory.v_pitch + spread(lane() / 4) * 16) {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none.
    template <int kFragments, class Row>
    __device__ __forceinline__ void load_queries(Queries (&)[kFragments], Row&& row) {
#pragma unroll
      for (int i = 0; i < kFragments * kOwnRows; ++i) {
        const auto from = row(i);
        const int to = first_row() + i / kOwnRows * kRows + own_row(i % kOwnRows);
        RowCopies<kConfig>::template copy_row<kConfig.qk_dim, kConfig.qk_columns(), 8, kConfig.q_bytes, 4>(
            memory_ + kMemory.q + to * kMemory.q_pitch, from, from != nullptr, lane() % 4, 0);
      }
    }

    /// The thread's two columns of the eight from d on: of row r of fragment f; of its own key of the eight from `key`
    /// on.
    __device__ __forceinline__ Two query(int f, int r, int d) const {
      return at(rows_ + (kRows * f + 8 * r) * kMemory.q_pitch + d * 8);
    }
    __device__ __forceinline__ Two key(int key, int d) const {
      return at(keys_ + read_ + key * kMemory.k_pitch + d * 8);
    }
    /// The thread's two columns of fragment d, of its own value of the four from `key` on.
    __device__ __forceinline__ Two value(int key, int d) const {
      return at(values_ + read_ + key * kMemory.v_pitch + kOuts * d * 8);
    }

   private:
    /// The first row of the tile that is the wave's.
    __device__ __forceinline__ static int first_row() { return wave() % kConfig.row_waves * kConfig.wave_rows(); }
    __device__ __forceinline__ static Two at(const char* place) { return *reinterpret_cast<const Two*>(place); }

    const char *rows_, *keys_, *values_;
  };

  /// S = Q K^T for the wave's keys from `key` on.
  template <int kFragments, int kKeyFragments>
  static __device__ __forceinline__ void multiply_keys(Scores (&s)[kFragments][kKeyFragments],
                                                       const Queries (&)[kFragments], const Stream& stream, int key) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) clear(s[f][n]);
    }
#pragma unroll 2
    for (int d = 0; d < kConfig.qk_columns(); d += 8) {
      Two a[kFragments][kOwnRows];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) a[f][r] = stream.query(f, r, d);
      }
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Two b = stream.key(key + kKeys * n + 8 * half, d);
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            double(&x)[kOwnRows][kOwnKeys] = s[f][n].x;
            const double first[4] = {a[f][0].x[0], a[f][1].x[0], a[f][0].x[1], a[f][1].x[1]};
            ptx::mma_f64(x[0][2 * half], x[0][2 * half + 1], x[1][2 * half], x[1][2 * half + 1], first, b.x[0], b.x[1]);
          }
        }
      }
    }
  }

  /// O += P V.
  template <int kFragments, int kKeyFragments, int kOutFragments>
  static __device__ __forceinline__ void add_values(Out (&o)[kFragments][kOutFragments],
                                                    const Scores (&p)[kFragments][kKeyFragments], const Stream& stream,
                                                    int key) {
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int d = 0; d < kOutFragments; ++d) {
          const Two near = stream.value(key + kKeys * n + 8 * half, d),
                    far = stream.value(key + kKeys * n + 8 * half + 4, d);
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            const double(&weights)[kOwnRows][kOwnKeys] = p[f][n].x;
            const double first[4] = {weights[0][2 * half], weights[1][2 * half], weights[0][2 * half + 1],
                                     weights[1][2 * half + 1]};
            double(&x)[kOwnRows][kOwnOuts] = o[f][d].x;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              ptx::mma_f64(x[0][j], x[0][2 + j], x[1][j], x[1][2 + j], first, near.x[j], far.x[j]);
            }
          }
        }
      }
    }
  }
};

}  // namespace heddle::portable
