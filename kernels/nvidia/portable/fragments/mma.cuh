// Fragments of NVIDIA's tensor cores as one warp drives them (sm_80 and later): 16 rows of scores by 16 keys, two mma
// of 8 keys side by side. Packed to halves they are the first operand of P V, so P changes no thread. Keys and values
// come by cp.async and stand by rows; values are transposed as they are read. f16 and bf16.
#pragma once

#include "portable/fragments/copied_blocks.cuh"
#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/warp.cuh"
#include "portable/fragments/wave_blocks.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::portable {

/// Blocks of the CTA, or of each wave.
template <auto kConfig, class Own, bool kOfWave>
struct ChosenBlocks {
  using Type = CopiedBlocks<kConfig, Own>;
};
template <auto kConfig, class Own>
struct ChosenBlocks<kConfig, Own, true> {
  using Type = WaveBlocks<kConfig, Own>;
};

template <auto kConfig>
struct MmaFragments : WarpOfThreads {
  using Real = float;
  static constexpr int kKeys = 16, kOuts = 16, kOwnRows = 2, kOwnKeys = 4, kOwnOuts = 4, kOutRun = 2;
  static constexpr bool kF16 = kConfig.storage == shared::Storage::f16;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);

  static __device__ __forceinline__ int own_row(int r) { return lane() / 4 + 8 * r; }
  static __device__ __forceinline__ int own_key(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }
  static __device__ __forceinline__ int own_out(int c) { return own_key(c); }
  static __device__ __forceinline__ bool first_of_row() { return lane() % 4 == 0; }

  using Scores = OwnElements<float, kOwnRows, kOwnKeys>;
  using Out = Scores;
  static __device__ __forceinline__ void clear(Scores& s) {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (int c = 0; c < kOwnKeys; ++c) s.x[r][c] = 0;
    }
  }

  static constexpr int kSteps = kConfig.qk_columns() / 16;  // of the depth of Q K^T
  struct Queries {
    unsigned a[kConfig.shared_queries ? 1 : kSteps][4];
  };

  static __device__ __forceinline__ float exp2(float x) { return ptx::exp2_fast(x); }
  /// Errs by 2^-22 of 1, not of the logarithm, so that lse in two words is as exact as its scores.
  static __device__ __forceinline__ float log2(float x) {
    constexpr int kRootOfHalf = 0x3f3504f3, kMantissa = 23;
    const int exponent = (__float_as_int(x) - kRootOfHalf) >> kMantissa;
    const float near_1 = __int_as_float(__float_as_int(x) - (exponent << kMantissa));
    const bool is_normal = x >= 0x1p-126F && x < ptx::infinity();
    return is_normal ? static_cast<float>(exponent) + ptx::log2_fast(near_1) : ptx::log2_fast(x);
  }
  static __device__ __forceinline__ float reciprocal(float x) { return ptx::reciprocal(x); }
  static __device__ __forceinline__ float row_max(float x) { return ptx::row_max(x); }
  static __device__ __forceinline__ float row_sum(float x) { return ptx::row_sum(x); }

  class Stream : public ChosenBlocks<kConfig, Stream, kConfig.own_blocks>::Type {
    using Blocks = typename ChosenBlocks<kConfig, Stream, kConfig.own_blocks>::Type;
    friend Blocks;

   public:
    __device__ __forceinline__ explicit Stream(char* memory) : Blocks(memory) {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none.
    template <int kFragments, class Row>
    __device__ __forceinline__ void load_queries(Queries (&q)[kFragments], Row&& row) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
          const char* from = row(f * kOwnRows + r);
          const ptx::SharedAddress to = queries_of_wave() + (16 * f + own_row(r)) * kMemory.q_pitch;
          if constexpr (kConfig.shared_queries && kConfig.own_blocks) {
            // All waves bring the same, and none waits for another: copies that are waited for would hold up the ring.
#pragma unroll
            for (int column = lane() % 4 * 2; column < kConfig.qk_columns(); column += 8) {
              ptx::store_two(to + 2 * column, two(from, column));
            }
          } else if constexpr (kConfig.shared_queries) {
            // Four threads have the row. (The next barrier comes before they read what others brought.)
            copy_row<kConfig.qk_dim, kConfig.qk_columns(), kConfig.q_bytes, 4>(to, from, from != nullptr, lane() % 4,
                                                                               0);
          } else {
#pragma unroll
            for (int k = 0; k < kSteps; ++k) {
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                q[f].a[k][2 * half + r] = two(from, 16 * k + 8 * half + lane() % 4 * 2);
              }
            }
          }
        }
      }
    }

    /// The first operand of step k of the depth.
    __device__ __forceinline__ void query(unsigned (&a)[4], const Queries& q, int f, int k) const {
      if constexpr (kConfig.shared_queries) {
        ptx::load_matrices<false>(
            a, queries_of_wave() + (16 * f + lane() % 16) * kMemory.q_pitch + 32 * k + lane() / 16 * 16);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q.a[k][i];
      }
    }
    /// Both halves of 16 keys, of step k of the depth.
    __device__ __forceinline__ void keys(unsigned (&b)[4], int key, int k) const {
      const int own = lane() / 16 * 8 + lane() % 8, chunk = lane() / 8 % 2;
      ptx::load_matrices<false>(b, base_ + kMemory.k + read_ + (key + own) * kMemory.k_pitch +
                                       turned<kMemory.k_pitch>(32 * k + 16 * chunk, own));
    }
    /// Both halves of 16 columns, of 16 keys.
    __device__ __forceinline__ void values(unsigned (&b)[4], int key, int column) const {
      const int own = lane() / 8 % 2 * 8 + lane() % 8, chunk = lane() / 16;
      ptx::load_matrices<true>(b, base_ + kMemory.v + read_ + (key + own) * kMemory.v_pitch +
                                      turned<kMemory.v_pitch>(2 * column + 16 * chunk, own));
    }

   private:
    /// Where byte `at` of a row stands in it; the row's number counts from a multiple of 8.
    template <int kPitch>
    __device__ __forceinline__ static int turned(int at, int row) {
      return shared::is_swizzled(kPitch) ? at ^ shared::turn_of(row) : at;
    }

    using Blocks::memory_, Blocks::base_, Blocks::read_;

    __device__ __forceinline__ ptx::SharedAddress queries_of_wave() const {
      return memory_ + kMemory.q + wave() % kConfig.row_waves * (kConfig.row_fragments * 16 * kMemory.q_pitch);
    }

    static constexpr int kBlock = kConfig.block_keys();
    /// The thread's number among those that copy a block.
    __device__ __forceinline__ static int copier() { return kConfig.own_blocks ? lane() : thread(); }

    /// Blocks may begin before the keys that count.
    static constexpr bool kBefore = kConfig.bounded && kConfig.blocks_in_pages();

    /// Rows `first` and on of a tensor; those before `begin` (kBefore) and from `end` on, and columns that it lacks,
    /// become 0.
    template <int kDim, int kColumns, class Source>
    __device__ __forceinline__ static void ask(const Source& source, ptx::SharedAddress to, int pitch, int first,
                                               int end, int begin = 0) {
      if (Source::kLinear && first + kBlock <= end && (!kBefore || begin <= first)) {
        ask_rows<kDim, kColumns, true>(source, to, pitch, first, end, begin);
      } else {
        ask_rows<kDim, kColumns, false>(source, to, pitch, first, end, begin);
      }
    }
    /// kWhole: the tensor has all of them.
    template <int kDim, int kColumns, bool kWhole, class Source>
    __device__ __forceinline__ static void ask_rows(const Source& source, ptx::SharedAddress to, int pitch, int first,
                                                    int end, int begin) {
      constexpr int kChunks = 2 * kColumns / kConfig.kv_bytes,
                    kThreads = kConfig.own_blocks ? 32 : 32 * kConfig.waves();
      // A thread's chunks are of one column where they can be.
      constexpr int kBeside = kThreads % kChunks == 0 || kChunks > kThreads ? kChunks : 1;
      constexpr int kTogether = kBeside == 1 ? beside(kChunks, kThreads) : kBeside;
      constexpr int kRounds = (kBlock * kTogether + kThreads - 1) / kThreads;
      const auto copy = [&](int round, auto&& row_at) {
        const int own = round * kThreads + copier(), row = own / kTogether;
        if (kBlock * kTogether % kThreads != 0 && row >= kBlock) return;
        const int turn = shared::is_swizzled(pitch) ? shared::turn_of(row) : 0;
        const bool there = kWhole || (first + row < end && (!kBefore || first + row >= begin));
        copy_row<kDim, kColumns, kConfig.kv_bytes, kTogether>(to + row * pitch, row_at(first + row), there,
                                                              own % kTogether, turn);
      };
      const int last = end > 0 ? end - 1 : 0;
      const auto inside = [&](int key) { return kWhole || key < last ? key : last; };
      if constexpr (kWhole && Source::kLinear && kThreads % kTogether == 0) {
        const char* steady = source.row(first + copier() / kTogether);
#pragma unroll kCopiesAtOnce < kConfig.kv_bytes>
        for (int i = 0; i < kRounds; ++i) {
          copy(i, [&](int) { return steady; });
          steady = source.below(steady, kThreads / kTogether);
        }
      } else if constexpr (kConfig.rings() && !Source::kLinear && kConfig.kv_bytes >= 8) {
        // The compiler moves no read of the table before a copy: so some rounds' entries are read before their copies.
        constexpr int kMost = kConfig.own_blocks && kColumns > 128 ? 4 : 8;
        constexpr int kAtOnce = kRounds < kMost ? kRounds : kMost;
#pragma unroll 1
        for (int round = 0; round < kRounds; round += kAtOnce) {
          int pages[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            pages[i] = source.page_of(inside(first + ((round + i) * kThreads + copier()) / kTogether));
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            if (kRounds % kAtOnce != 0 && round + i >= kRounds) break;
            copy(round + i, [&](int key) { return source.row(inside(key), pages[i]); });
          }
        }
      } else {
#pragma unroll kCopiesAtOnce < kConfig.kv_bytes>
        for (int i = 0; i < kRounds; ++i) copy(i, [&](int key) { return source.row(inside(key)); });
      }
    }
    /// The largest power of two of threads that share a row.
    static constexpr int beside(int chunks, int threads) {
      int most = 1;
      while (2 * most <= chunks && threads % (2 * most) == 0) most *= 2;
      return most;
    }

    /// Copies that the compiler may begin together. Rows at addresses that 8 bytes do not divide take many copies,
    /// whose addresses, and halves on their way, would not fit in the registers.
    template <int kBytes>
    static constexpr int kCopiesAtOnce = kBytes >= 8 ? 256 : 4;

    /// Chunks `own`, own + kTogether, ... of a row of halves, swizzled by `turn`.
    template <int kDim, int kColumns, int kBytes, int kTogether>
    __device__ __forceinline__ static void copy_row(ptx::SharedAddress to, const char* from, bool there, int own,
                                                    int turn) {
      constexpr int kChunks = 2 * kColumns / kBytes;
#pragma unroll kCopiesAtOnce < kBytes>
      for (int first = 0; first < kChunks; first += kTogether) {
        const int chunk = first + own;
        if (kChunks % kTogether != 0 && chunk >= kChunks) break;
        const int at = chunk * kBytes, left = there ? 2 * kDim - at : 0;
        if constexpr (kBytes == 2) {
          ptx::store_half(to + (at ^ turn), left > 0 ? *reinterpret_cast<const unsigned short*>(from + at) : 0);
        } else {
          const char* const chunk_begin = left > 0 ? from + at : from;
          const int valid = left < 0 ? 0 : left < kBytes ? left : kBytes;
          if constexpr (kConfig.own_blocks && kBytes == 16 && 2 * kDim % 128 == 0) {
            ptx::copy_async_of_line(to + (at ^ turn), chunk_begin, valid);
          } else {
            ptx::copy_async<kBytes>(to + (at ^ turn), chunk_begin, valid);
          }
        }
      }
    }

    /// Two neighbours of a query.
    __device__ __forceinline__ static unsigned two(const char* from, int column) {
      if (from == nullptr) return 0;
      const auto* half = reinterpret_cast<const unsigned short*>(from) + column;
      if (kConfig.q_bytes >= 4 && column + 1 < kConfig.qk_dim) return *reinterpret_cast<const unsigned*>(half);
      const unsigned low = column < kConfig.qk_dim ? half[0] : 0, high = column + 1 < kConfig.qk_dim ? half[1] : 0;
      return high << 16 | low;
    }
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
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      unsigned a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) stream.query(a[f], q[f], f, k);
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) {
        unsigned b[4];
        stream.keys(b, key + kKeys * n, k);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) multiply(s[f][n], a[f], b);
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
      unsigned a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[f][i] = ptx::pack<kF16>(p[f][n].x[i % 2][i / 2 * 2], p[f][n].x[i % 2][i / 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int d = 0; d < kOutFragments; ++d) {
        unsigned b[4];
        stream.values(b, key + kKeys * n, kOuts * d);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) multiply(o[f][d], a[f], b);
      }
    }
  }

  static __device__ __forceinline__ unsigned short half_bits(float x) {
    return static_cast<unsigned short>(ptx::pack<true>(x, 0));
  }
  static __device__ __forceinline__ unsigned short bfloat_bits(float x) {
    return static_cast<unsigned short>(ptx::pack<false>(x, 0));
  }

 private:
  /// Both mma of a fragment.
  static __device__ __forceinline__ void multiply(Scores& s, const unsigned (&a)[4], const unsigned (&b)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::mma<kF16>(s.x[0][2 * half], s.x[0][2 * half + 1], s.x[1][2 * half], s.x[1][2 * half + 1], a, b[2 * half],
                     b[2 * half + 1]);
    }
  }
};

}  // namespace heddle::portable
