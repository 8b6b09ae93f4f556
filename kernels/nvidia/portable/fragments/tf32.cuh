// Fragments of f32 whose products are tf32's, as one warp of a tensor core drives them (sm_80 and later): 16 rows of
// scores by 16 keys, two mma of 8 keys side by side. All stands in shared memory as it is stored and is rounded when it
// is read. ldmatrix reads queries and keys: its rows of 16 bytes are four columns. The depth of P V is the keys, in
// an order in which the threads' own weights are its first operand: 2 t and 2 t + 1 where mma counts t and t + 4. A
// load of 16 bytes of a value has a thread's column of four mma, so their columns are every fourth of 32.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "fragments/lane_reductions.cuh"
#include "portable/fragments/copied_blocks.cuh"
#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/plain_numbers.cuh"
#include "portable/fragments/row_copies.cuh"
#include "ptx/math.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

template <auto kConfig>
struct Tf32Fragments : PlainNumbers<false> {
  static constexpr int kRows = 16, kKeys = 16, kOuts = 32, kOwnRows = 2, kOwnKeys = 4, kOwnOuts = 8, kOutRun = 8;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  static_assert(kConfig.storage == shared::Storage::f32 && kConfig.shared_queries && !kConfig.own_blocks);

  static __device__ __forceinline__ int own_row(int r) { return lane() / 4 + 8 * r; }
  static __device__ __forceinline__ int own_key(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }
  static __device__ __forceinline__ int own_out(int c) { return lane() % 4 * 8 + c; }
  static __device__ __forceinline__ bool first_of_row() { return lane() % 4 == 0; }

  using Scores = OwnElements<float, kOwnRows, kOwnKeys>;
  using Out = OwnElements<float, kOwnRows, kOwnOuts>;
  struct Queries {};  // in shared memory

  /// Query r of a thread, of fragment f of those whose terms are turned.
  static __device__ __forceinline__ int turned_row(int f, int r) { return kRows * f + own_row(r); }
  /// Terms of a wave's keys and 32 queries, rounded: [keys][queries] of the first 16 queries, and of the others. Rows
  /// are 20 words apart, so that keys 2 t and 2 t + 1 of 8 queries stand in all banks.
  struct Turned {
    char* half[2];
  };

  static __device__ __forceinline__ float row_max(float x) { return quad_max(x); }
  static __device__ __forceinline__ float row_sum(float x) { return quad_sum(x); }

  class Stream : public CopiedBlocks<kConfig, RowCopies<kConfig>> {
    using Blocks = CopiedBlocks<kConfig, RowCopies<kConfig>>;
    using Blocks::memory_, Blocks::read_;

   public:
    __device__ __forceinline__ explicit Stream(char* memory) : Blocks(memory), blocks_(memory) {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none.
    template <int kFragments, class Row>
    __device__ __forceinline__ void load_queries(Queries (&)[kFragments], Row&& row) {
#pragma unroll
      for (int i = 0; i < kFragments * kOwnRows; ++i) {
        const auto from = row(i);
        const int to = i / kOwnRows * kRows + own_row(i % kOwnRows);
        RowCopies<kConfig>::template copy_row<kConfig.qk_dim, kConfig.qk_columns(), 4, kConfig.q_bytes, 4>(
            queries() + to * kMemory.q_pitch, from, from != nullptr, lane() % 4, 0);
      }
    }

    /// The first operand of 8 columns from d on, of fragment f.
    __device__ __forceinline__ void query(unsigned (&a)[4], int f, int d) const {
      load_rounded(a, queries() + (kRows * f + lane() % 16) * kMemory.q_pitch + d * 4 + lane() / 16 * 16);
    }
    /// The second operands of both halves of 16 keys, 8 columns from d on.
    __device__ __forceinline__ void keys(unsigned (&b)[4], int key, int d) const {
      const int own = lane() / 16 * 8 + lane() % 8, chunk = lane() / 8 % 2;
      load_rounded(b, memory_ + kMemory.k + read_ + (key + own) * kMemory.k_pitch + d * 4 + chunk * 16);
    }
    /// The second operands of four mma: of keys `key` + 2 t, or the ones behind them, and of 32 columns of fragment d.
    __device__ __forceinline__ void values(unsigned (&b)[4], int key, int d) const {
      struct alignas(16) Four {
        float x[4];
      };
      const Four read = *reinterpret_cast<const Four*>(
          blocks_ + kMemory.v + read_ + (key + lane() % 4 * 2) * kMemory.v_pitch + (kOuts * d + lane() / 4 * 4) * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = ptx::to_tf32(read.x[i]);
    }

   private:
    __device__ __forceinline__ ptx::SharedAddress queries() const {
      return memory_ + kMemory.q + wave() % kConfig.row_waves * (kConfig.wave_rows() * kMemory.q_pitch);
    }
    __device__ __forceinline__ static void load_rounded(unsigned (&x)[4], ptx::SharedAddress row) {
      ptx::load_matrices<false>(x, row);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = ptx::to_tf32(__int_as_float(static_cast<int>(x[i])));
    }

    const char* blocks_;
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
      unsigned a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) stream.query(a[f], f, d);
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) {
        unsigned b[4];
        stream.keys(b, key + kKeys * n, d);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float(&x)[kOwnRows][kOwnKeys] = s[f][n].x;
            ptx::mma_tf32(x[0][2 * half], x[0][2 * half + 1], x[1][2 * half], x[1][2 * half + 1], a[f], b[2 * half],
                          b[2 * half + 1]);
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
        unsigned a[kFragments][4];
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[f][i] = ptx::to_tf32(p[f][n].x[i % 2][2 * half + i / 2]);
        }
#pragma unroll
        for (int d = 0; d < kOutFragments; ++d) {
          unsigned even[4], odd[4];
          stream.values(even, key + kKeys * n + 8 * half, d);
          stream.values(odd, key + kKeys * n + 8 * half + 1, d);
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float(&x)[kOwnRows][kOwnOuts] = o[f][d].x;
              ptx::mma_tf32(x[0][j], x[0][4 + j], x[1][j], x[1][4 + j], a[f], even[j], odd[j]);
            }
          }
        }
      }
    }
  }

  /// The terms of the wave's keys and of fragments n and n + 1 of queries.
  template <int kFragments, int kKeyFragments>
  static __device__ __forceinline__ void leave_turned(const Turned& to, const Scores (&x)[kFragments][kKeyFragments],
                                                      int n) {
    struct alignas(8) Two {
      unsigned x[2];
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kFragments * kOwnRows; ++i) {
        const int key = i / kOwnRows * kRows + own_row(i % kOwnRows);
#pragma unroll
        for (int c = 0; c < kOwnKeys; c += 2) {
          const float(&terms)[kOwnKeys] = x[i / kOwnRows][n + half].x[i % kOwnRows];
          *reinterpret_cast<Two*>(to.half[half] + key * shared::kTurnedPitch + own_key(c) * 4) = {
              ptx::to_tf32(terms[c]), ptx::to_tf32(terms[c + 1])};
        }
      }
    }
  }
  /// O += Xᵀ K of all keys of the wave, from `key` of the stream's block on, for the columns of fragment `first` and
  /// on.
  template <int kWaveKeys, int kOutFragments>
  static __device__ __forceinline__ void add_turned(Out (&o)[2][kOutFragments], const Turned& terms,
                                                    const Stream& stream, int key, int first) {
    const int own = lane() % 4 * 2 * shared::kTurnedPitch + lane() / 4 * 4;
#pragma unroll 1
    for (int j = 0; j < kWaveKeys; j += 8) {
      unsigned a[2][4];
#pragma unroll
      for (int f = 0; f < 2; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (j + i / 2) * shared::kTurnedPitch + i % 2 * 32;
          a[f][i] = *reinterpret_cast<const unsigned*>(terms.half[f] + own + at);
        }
      }
#pragma unroll
      for (int d = 0; d < kOutFragments; ++d) {
        unsigned even[4], odd[4];
        stream.values(even, key + j, first + d);
        stream.values(odd, key + j + 1, first + d);
#pragma unroll
        for (int f = 0; f < 2; ++f) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float(&x)[kOwnRows][kOwnOuts] = o[f][d].x;
            ptx::mma_tf32(x[0][i], x[0][4 + i], x[1][i], x[1][4 + i], a[f], even[i], odd[i]);
          }
        }
      }
    }
  }
};

}  // namespace heddle::portable
