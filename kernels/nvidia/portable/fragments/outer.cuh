// Fragments of f32 as sums of outer products: 16 rows of scores by 32 keys, of which a thread has 4 by 4. With two
// fragments of rows and two of keys a thread multiplies 8 rows by 8 keys: 16 loads of 16 bytes for 256 multiply-adds,
// so that these decide, not shared memory.
//
// Thread (i, j) has rows 4 r + i, keys 8 c + j, and of O columns 4 j and on. Neighbours in bit 0 of the lane have the
// same keys, those in bit 1 the same rows: shared memory then serves 16 threads at once, which load 64 bytes that
// differ, in loads of rows and in loads of keys alike. Weights go to the other threads of a row through shared memory.
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
struct OuterFragments : PlainNumbers<false> {
  static constexpr int kRows = 16, kKeys = 32, kOuts = 32, kOwnRows = 4, kOwnKeys = 4, kOwnOuts = 4, kOutRun = 4;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  static_assert(kConfig.storage == shared::Storage::f32 && kConfig.shared_queries && !kConfig.own_blocks);

  // The thread's place among the four that have different rows, and among the eight that have different keys.
  static __device__ __forceinline__ int row_lane() { return (lane() & 1) | (lane() >> 1 & 2); }
  static __device__ __forceinline__ int key_lane() { return (lane() >> 1 & 1) | (lane() >> 2 & 6); }

  static __device__ __forceinline__ int own_row(int r) { return 4 * r + row_lane(); }
  static __device__ __forceinline__ int own_key(int c) { return 8 * c + key_lane(); }
  static __device__ __forceinline__ int own_out(int c) { return 4 * key_lane() + c; }
  static __device__ __forceinline__ bool first_of_row() { return key_lane() == 0; }

  using Scores = OwnElements<float, kOwnRows, kOwnKeys>;
  using Out = Scores;
  struct Queries {};  // in shared memory

  // The bits of key_lane().
  static __device__ __forceinline__ float row_max(float x) { return max_over_lanes<2, 8, 16>(x); }
  static __device__ __forceinline__ float row_sum(float x) { return sum_over_lanes<2, 8, 16>(x); }

  struct alignas(16) Four {
    float x[4];
  };

  /// Query r of a thread, of fragment f of those whose terms are turned.
  static __device__ __forceinline__ int turned_row(int f, int r) { return 8 * r + 4 * f + row_lane(); }
  /// Terms of a wave's keys and 32 queries, turned: those of the first half of its keys, and of the other one. A key
  /// has 128 bytes: of each thread that has them the four queries.
  struct Turned {
    char* half[2];
  };

  class Stream : public CopiedBlocks<kConfig, RowCopies<kConfig>> {
    using Blocks = CopiedBlocks<kConfig, RowCopies<kConfig>>;
    using Blocks::memory_, Blocks::read_;

   public:
    __device__ __forceinline__ explicit Stream(char* memory)
        : Blocks(memory),
          rows_(memory + kMemory.q + row_of(0) * kMemory.q_pitch),
          blocks_(memory),
          weights_(memory + kMemory.weights + wave() * shared::weight_bytes(kConfig)) {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none.
    template <int kFragments, class Row>
    __device__ __forceinline__ void load_queries(Queries (&)[kFragments], Row&& row) {
#pragma unroll
      for (int i = 0; i < kFragments * kOwnRows; ++i) {
        const auto from = row(i);
        RowCopies<kConfig>::template copy_row<kConfig.qk_dim, kConfig.qk_columns(), 4, kConfig.q_bytes, 8>(
            memory_ + kMemory.q + row_of(i) * kMemory.q_pitch, from, from != nullptr, key_lane(), 0);
      }
    }

    /// Four neighbours of the thread's row i; of key j, which the thread has; its columns of value j and fragment d.
    __device__ __forceinline__ Four query(int i, int d) const {
      return at(rows_, (i / kOwnRows * kRows + i % kOwnRows * 4) * kMemory.q_pitch + d * 4);
    }
    __device__ __forceinline__ Four key(int j, int d) const {
      return at(blocks_, kMemory.k + read_ + j * kMemory.k_pitch + d * 4);
    }
    __device__ __forceinline__ Four value(int j, int d) const {
      return at(blocks_, kMemory.v + read_ + j * kMemory.v_pitch + (kOuts * d + own_out(0)) * 4);
    }
    /// Weights of key j of 16, of the thread's rows of fragment f: on their way to all threads that have these rows.
    __device__ __forceinline__ void leave_weights(int j, int f, const Four& weights) const {
      *reinterpret_cast<Four*>(weights_ + weight_at(j, f)) = weights;
    }
    __device__ __forceinline__ Four weights(int j, int f) const { return at(weights_, weight_at(j, f)); }

   private:
    /// The row of the tile that is the thread's row i.
    __device__ __forceinline__ static int row_of(int i) {
      return wave() % kConfig.row_waves * kConfig.wave_rows() + i / kOwnRows * kRows + own_row(i % kOwnRows);
    }
    __device__ __forceinline__ static Four at(const char* base, int offset) {
      return *reinterpret_cast<const Four*>(base + offset);
    }
    /// Two keys that threads store at once stand in different banks.
    __device__ __forceinline__ static int weight_at(int j, int f) {
      constexpr int kFragments = kConfig.row_fragments;
      const int turned = kFragments % 2 == 0 ? f ^ (j & 1) : f;
      return (j * kFragments + turned) * 64 + row_lane() * 16;
    }

    char *rows_, *blocks_, *weights_;
  };

  /// S = Q K^T for the wave's keys from `key` on.
  template <int kFragments, int kKeyFragments>
  static __device__ __forceinline__ void multiply_keys(Scores (&s)[kFragments][kKeyFragments],
                                                       const Queries (&)[kFragments], const Stream& stream, int key) {
    constexpr int kAll = kFragments * kOwnRows;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) clear(s[f][n]);
    }
#pragma unroll 1
    for (int d = 0; d < kConfig.qk_columns(); d += 4) {
      Four q[kAll];
#pragma unroll
      for (int i = 0; i < kAll; ++i) q[i] = stream.query(i, d);
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
        for (int c = 0; c < kOwnKeys; ++c) {
          const Four k = stream.key(key + kKeys * n + own_key(c), d);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int i = 0; i < kAll; ++i) {
              float& sum = s[i / kOwnRows][n].x[i % kOwnRows][c];
              sum = fmaf(q[i].x[e], k.x[e], sum);
            }
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
    constexpr int kAtOnce = 2;  // of a thread's keys of a fragment: 16 keys of the wave
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int first = 0; first < kOwnKeys; first += kAtOnce) {
        wave_barrier();  // the weights before have been read
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c) {
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            Four weights;
#pragma unroll
            for (int r = 0; r < kOwnRows; ++r) weights.x[r] = p[f][n].x[r][first + c];
            stream.leave_weights(own_key(c), f, weights);
          }
        }
        wave_barrier();
#pragma unroll 2
        for (int j = 0; j < kKeys / kOwnKeys * kAtOnce; ++j) {
          add_value(o, stream, j, key + kKeys * n + kKeys / kOwnKeys * first + j);
        }
      }
    }
  }

  /// The terms of the wave's keys and of fragment n of queries.
  template <int kFragments, int kKeyFragments>
  static __device__ __forceinline__ void leave_turned(const Turned& to, const Scores (&x)[kFragments][kKeyFragments],
                                                      int n) {
    constexpr int kAll = kFragments * kOwnRows, kHalf = kFragments * kRows / 2;
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      const int half = 2 * i / kAll, key = i / kOwnRows * kRows + own_row(i % kOwnRows) - half * kHalf;
      Four terms;
#pragma unroll
      for (int c = 0; c < kOwnKeys; ++c) terms.x[c] = x[i / kOwnRows][n].x[i % kOwnRows][c];
      *reinterpret_cast<Four*>(to.half[half] + key * kTurnedBytes + key_lane() * 16) = terms;
    }
  }
  /// O += Xᵀ K of all keys of the wave, from `key` of the stream's block on, for the columns of fragment `first` and
  /// on.
  template <int kWaveKeys, int kOutFragments>
  static __device__ __forceinline__ void add_turned(Out (&o)[2][kOutFragments], const Turned& terms,
                                                    const Stream& stream, int key, int first) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* const own = terms.half[half] + row_lane() * 16;
#pragma unroll 2
      for (int j = 0; j < kWaveKeys / 2; ++j) {
        Four weights[2];
#pragma unroll
        for (int f = 0; f < 2; ++f) weights[f] = *reinterpret_cast<const Four*>(own + j * kTurnedBytes + f * 64);
        add_value(o, weights, stream, key + kWaveKeys / 2 * half + j, first);
      }
    }
  }

 private:
  static constexpr int kTurnedBytes = 32 * 4;  // of a key

  /// O += the outer product of the weights of key j of 16 and value `key`.
  template <int kFragments, int kOutFragments>
  static __device__ __forceinline__ void add_value(Out (&o)[kFragments][kOutFragments], const Stream& stream, int j,
                                                   int key) {
    Four weights[kFragments];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) weights[f] = stream.weights(j, f);
    add_value(o, weights, stream, key, 0);
  }
  template <int kFragments, int kOutFragments>
  static __device__ __forceinline__ void add_value(Out (&o)[kFragments][kOutFragments],
                                                   const Four (&weights)[kFragments], const Stream& stream, int key,
                                                   int first) {
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) {
      const Four v = stream.value(key, first + d);
#pragma unroll
      for (int e = 0; e < kOwnOuts; ++e) {
#pragma unroll
        for (int i = 0; i < kFragments * kOwnRows; ++i) {
          float& sum = o[i / kOwnRows][d].x[i % kOwnRows][e];
          sum = fmaf(weights[i / kOwnRows].x[i % kOwnRows], v.x[e], sum);
        }
      }
    }
  }
};

}  // namespace heddle::portable
