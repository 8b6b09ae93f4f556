// Fragments of plain multiply-adds, for f32 and f64 on every GPU, and for f16, bf16 and 8 bits on those of AMD that
// have no matrix instructions: 16 rows of scores by 16 keys, of which thread (i, j), i = lane / 4 and j = lane % 4, has
// rows i and i + 8, keys 4 n + j, and of O columns 4 j and on. Queries, keys and values stand in shared memory as they
// are stored, those of 8 bits as f16. For P V a thread needs weights that three others have: they come by shuffles.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "fragments/lane_reductions.cuh"
#include "portable/fragments/copied_blocks.cuh"
#include "portable/fragments/halves_of_eight_bits.cuh"
#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/plain_numbers.cuh"
#include "portable/fragments/split_rows.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

template <auto kConfig>
struct FmaFragments : PlainNumbers<kConfig.storage == shared::Storage::f64> {
  using Numbers = PlainNumbers<kConfig.storage == shared::Storage::f64>;
  using Numbers::brings_queries, Numbers::clear, Numbers::fused, Numbers::lane, Numbers::larger, Numbers::thread,
      Numbers::wave;
  using typename Numbers::Real;
  static constexpr int kKeys = 16, kOuts = 16, kOwnRows = 2, kOwnKeys = 4, kOwnOuts = 4, kOutRun = 4;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  static constexpr bool kF16 = kConfig.storage == shared::Storage::f16;
  static constexpr int kSize = kConfig.element_bytes();
  static_assert(kConfig.shared_queries && (kSize == 2 || kSize == sizeof(Real)));

  static __device__ __forceinline__ int own_row(int r) { return lane() / 4 + 8 * r; }
  static __device__ __forceinline__ int own_key(int c) { return 4 * c + lane() % 4; }
  static __device__ __forceinline__ int own_out(int c) { return 4 * (lane() % 4) + c; }
  static __device__ __forceinline__ bool first_of_row() { return lane() % 4 == 0; }

  using Scores = OwnElements<Real, kOwnRows, kOwnKeys>;
  using Out = Scores;
  struct Queries {          // in shared memory
    Real factor[kOwnRows];  // converts(): of the products of the thread's rows
  };

  static __device__ __forceinline__ Real row_max(Real x) { return quad_max(x); }
  static __device__ __forceinline__ Real row_sum(Real x) { return quad_sum(x); }

  class Stream : public CopiedBlocks<kConfig, Stream> {
    using Blocks = CopiedBlocks<kConfig, Stream>;
    friend Blocks;

   public:
    __device__ __forceinline__ explicit Stream(char* memory) : Blocks(memory), memory_(memory) {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none.
    template <int kFragments, class Row>
    __device__ __forceinline__ void load_queries(Queries (&q)[kFragments], Row&& row) {
#pragma unroll
      for (int i = 0; i < kFragments * kOwnRows; ++i) {
        if constexpr (kConfig.converts()) q[i / kOwnRows].factor[i % kOwnRows] = 1;
        const auto from = row(i);
        if (!brings_queries(kConfig.row_waves)) break;
        copy_row<kConfig.qk_dim, kConfig.qk_columns(), kConfig.q_bytes, kConfig.q_fp8, 4>(
            base_ + kMemory.q + row_of(i) * kMemory.k_pitch, from, from != nullptr, lane() % 4);
      }
    }

    /// Four neighbours of the thread's row i; of key j; of value j.
    __device__ __forceinline__ void query(Real (&x)[4], int i, int d) const {
      load<kF16 && !kConfig.q_bf16>(x, kMemory.q + row_of(i) * kMemory.k_pitch, d);
    }
    __device__ __forceinline__ void key(Real (&x)[4], int j, int d) const {
      load<kF16>(x, kMemory.k + read_ + j * kMemory.k_pitch, d);
    }
    __device__ __forceinline__ void value(Real (&x)[4], int j, int d) const {
      load<kF16>(x, kMemory.v + read_ + j * kMemory.v_pitch, d);
    }

   private:
    using Blocks::base_, Blocks::read_;

    struct alignas(8) FourHalves {
      unsigned short x[4];
    };
    struct alignas(16) Sixteen {
      Real x[16 / sizeof(Real)];
    };

    /// The row of the tile that is the thread's row i.
    __device__ __forceinline__ static int row_of(int i) {
      return wave() % kConfig.row_waves * kConfig.wave_rows() + i / kOwnRows * 16 + own_row(i % kOwnRows);
    }
    template <bool kOfF16>
    __device__ __forceinline__ void load(Real (&x)[4], int row, int d) const {
      if constexpr (kSize == 2) {
        const FourHalves part = *reinterpret_cast<const FourHalves*>(memory_ + row + d * kSize);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = widened<kOfF16>(part.x[e]);
      } else {
        constexpr int kEach = 16 / sizeof(Real);
#pragma unroll
        for (int i = 0; i < 4; i += kEach) {
          const Sixteen part = *reinterpret_cast<const Sixteen*>(memory_ + row + (d + i) * sizeof(Real));
#pragma unroll
          for (int e = 0; e < kEach; ++e) x[i + e] = part.x[e];
        }
      }
    }
    /// The number that 16 bits mean.
    template <bool kOfF16>
    __device__ __forceinline__ static float widened(unsigned short bits) {
      if constexpr (!kOfF16) return __uint_as_float(static_cast<unsigned>(bits) << 16);
      const unsigned size = bits & 0x7fffU, moved = size << 13;
      const float x = size < 0x7c00U ? __uint_as_float(moved) * 0x1p112F : __uint_as_float(moved | 0x7f800000U);
      return bits == size ? x : -x;
    }

    template <int kDim, int kColumns, shared::Fp8 kType, class Source>
    __device__ __forceinline__ static void ask(const Source& source, ptx::SharedAddress to, int pitch, int first,
                                               int end) {
      constexpr int kTogether = 4;
#pragma unroll 1
      for (int own = thread(); own < kConfig.kv_block * kTogether; own += 32 * kConfig.waves()) {
        const int row = own / kTogether, key = first + row, last = end > 0 ? end - 1 : 0;
        copy_row<kDim, kColumns, kConfig.kv_bytes, kType, kTogether>(
            to + row * pitch, source.row(key < last ? key : last), key < end, own % kTogether);
      }
    }
    template <int kDim, int kColumns, int kBytes, shared::Fp8 kType, int kTogether, class Row>
    __device__ __forceinline__ static void copy_row(ptx::SharedAddress to, const Row& from, bool there, int own) {
      if constexpr (kType != shared::Fp8::none) {
        copy_bytes<kDim, kColumns, kBytes, kType, kTogether>(to, from, there, own);
        return;
      }
      constexpr int kChunks = kSize * kColumns / kBytes;
#pragma unroll 4
      for (int chunk = own; chunk < kChunks; chunk += kTogether) {
        const int at = chunk * kBytes, left = there ? kSize * kDim - at : 0;
        ptx::copy_async<kBytes>(to + at, byte_of_if(left > 0, from, at), left < 0 ? 0 : left < kBytes ? left : kBytes);
      }
    }

    /// A row of 8 bits as halves, four columns at a time.
    template <int kDim, int kColumns, int kBytes, shared::Fp8 kType, int kTogether, class Row>
    __device__ __forceinline__ static void copy_bytes(ptx::SharedAddress to, const Row& from, bool there, int own) {
#pragma unroll 4
      for (int column = 4 * own; column < kColumns; column += 4 * kTogether) {
        unsigned bytes = 0;
        if (kBytes >= 4 && (kDim % 4 == 0 || column + 4 <= kDim)) {
          if (there && column < kDim) bytes = *reinterpret_cast<const unsigned*>(byte_of(from, column));
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!there || column + i >= kDim) continue;
            bytes |= *reinterpret_cast<const unsigned char*>(byte_of(from, column + i)) << 8 * i;
          }
        }
        const Halves halves = halves_of_neighbours<kType>(bytes);
        ptx::store_two(to + 2 * column, halves.low);
        ptx::store_two(to + 2 * column + 4, halves.high);
      }
    }

    char* memory_;
  };

  /// S = Q K^T for the wave's keys from `key` on.
  template <int kFragments, int kKeyFragments>
  static __device__ __forceinline__ void multiply_keys(Scores (&s)[kFragments][kKeyFragments],
                                                       const Queries (&q)[kFragments], const Stream& stream, int key) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) clear(s[f][n]);
    }
#pragma unroll 1
    for (int d = 0; d < kConfig.qk_columns(); d += 4) {
      Real queries[kFragments * kOwnRows][4];
#pragma unroll
      for (int i = 0; i < kFragments * kOwnRows; ++i) stream.query(queries[i], i, d);
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
        for (int c = 0; c < kOwnKeys; ++c) {
          Real k[4];
          stream.key(k, key + kKeys * n + own_key(c), d);
#pragma unroll
          for (int i = 0; i < kFragments * kOwnRows; ++i) {
            Real& sum = s[i / kOwnRows][n].x[i % kOwnRows][c];
#pragma unroll
            for (int e = 0; e < 4; ++e) sum = fused(queries[i][e], k[e], sum);
          }
        }
      }
    }
    if constexpr (kConfig.converts()) scale_scores(s, q);
  }

  /// O += P V.
  template <int kFragments, int kKeyFragments, int kOutFragments>
  static __device__ __forceinline__ void add_values(Out (&o)[kFragments][kOutFragments],
                                                    const Scores (&p)[kFragments][kKeyFragments], const Stream& stream,
                                                    int key) {
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int c = 0; c < kOwnKeys; ++c) {
#pragma unroll
        for (int from = 0; from < 4; ++from) {  // key 4 c + from, which the thread beside has
          Real weight[kFragments * kOwnRows];
#pragma unroll
          for (int i = 0; i < kFragments * kOwnRows; ++i) {
            weight[i] = __shfl_sync(~0U, p[i / kOwnRows][n].x[i % kOwnRows][c], (lane() & ~3) + from);
          }
#pragma unroll
          for (int d = 0; d < kOutFragments; ++d) {
            Real v[kOwnOuts];
            stream.value(v, key + kKeys * n + 4 * c + from, kOuts * d + own_out(0));
#pragma unroll
            for (int e = 0; e < kOwnOuts; ++e) {
#pragma unroll
              for (int i = 0; i < kFragments * kOwnRows; ++i) {
                Real& sum = o[i / kOwnRows][d].x[i % kOwnRows][e];
                sum = fused(weight[i], v[e], sum);
              }
            }
          }
        }
      }
    }
  }
};

}  // namespace heddle::portable
