// Fragments of NVIDIA's tensor cores as one warp drives them (sm_80 and later): 16 rows of scores by 16 keys, two mma
// of 8 keys side by side. Packed to halves they are the first operand of P V, so P changes no thread. Keys and values
// come by cp.async and stand by rows; values are transposed as they are read. f16 and bf16; keys and values of 8 bits
// become f16 between their load and the product (kConfig.converts()).
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "fragments/lane_reductions.cuh"
#include "portable/fragments/copied_blocks.cuh"
#include "portable/fragments/halves_of_eight_bits.cuh"
#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/powers_of_rows.cuh"
#include "portable/fragments/row_copies.cuh"
#include "portable/fragments/split_rows.cuh"
#include "portable/fragments/warp.cuh"
#include "portable/fragments/wave_blocks.cuh"
#include "ptx/math.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

/// Blocks of the CTA, or of each wave.
template <auto kConfig, bool kOfWave>
struct ChosenBlocks {
  using Type = CopiedBlocks<kConfig, RowCopies<kConfig>>;
};
template <auto kConfig>
struct ChosenBlocks<kConfig, true> {
  using Type = WaveBlocks<kConfig, RowCopies<kConfig>>;
};

template <auto kConfig>
struct MmaFragments : WarpOfThreads {
  using Real = float;
  static constexpr int kKeys = 16, kOuts = 16, kOwnRows = 2, kOwnKeys = 4, kOwnOuts = 4;
  static constexpr int kOutRun = kConfig.converts() ? 4 : 2;
  static constexpr bool kF16 = kConfig.storage == shared::Storage::f16;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);

  static __device__ __forceinline__ int own_row(int r) { return lane() / 4 + 8 * r; }
  static __device__ __forceinline__ int own_key(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }
  /// A load of bytes has two columns a half: one product takes the even ones, the other the odd ones.
  static __device__ __forceinline__ int own_out(int c) { return kConfig.converts() ? lane() % 4 * 4 + c : own_key(c); }
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
  /// Steps that are unrolled: beside many sums there are no registers for the addresses of all.
  static constexpr int kStepsAtOnce = kConfig.wide() || kConfig.deep() ? 4 : kSteps;
  /// Pairs of a query that are loaded at once: each such step waits for memory.
  static constexpr int kPairsAtOnce = kConfig.wide() ? 24 : 2 * kSteps;
  static constexpr bool kCopiesQueries = false;  // ask_queries() in place of load_queries()
  struct Queries {
    unsigned a[kConfig.shared_queries ? 1 : kSteps][4];
    float factor[kOwnRows];  // converts(): of the products of the thread's rows
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
  static __device__ __forceinline__ float row_max(float x) { return quad_max(x); }
  static __device__ __forceinline__ float row_sum(float x) { return quad_sum(x); }

  class Stream : public ChosenBlocks<kConfig, kConfig.own_blocks>::Type {
    using Blocks = typename ChosenBlocks<kConfig, kConfig.own_blocks>::Type;

   public:
    __device__ __forceinline__ explicit Stream(char* memory) : Blocks(memory) {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none.
    template <int kFragments, class Row>
    __device__ __forceinline__ void load_queries(Queries (&q)[kFragments], Row&& row) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
          const auto from = row(f * kOwnRows + r);
          const ptx::SharedAddress to = queries_of_wave() + (16 * f + own_row(r)) * kMemory.q_pitch;
          if constexpr (kConfig.shared_queries && !kConfig.own_blocks && !kConfig.converts()) {
            // Four threads have the row. (The next barrier comes before they read what others brought.)
            RowCopies<kConfig>::template copy_row<kConfig.qk_dim, kConfig.qk_columns(), kConfig.element_bytes(),
                                                  kConfig.q_bytes, 4>(to, from, from != nullptr, lane() % 4, 0);
          } else if constexpr (kConfig.shared_queries) {
            // All waves of a row bring the same. Copies that are waited for would hold up rings of their own blocks.
            const auto pair = [&](int i) { return two(from, pair_column(i)); };
            const float power = kConfig.q_bf16 ? power_of(pair) : 1;
#pragma unroll kPairsAtOnce
            for (int i = 0; i < 2 * kSteps; ++i) ptx::store_two(to + 16 * i + lane() % 4 * 4, halves(pair(i), power));
            if constexpr (kConfig.converts()) q[f].factor[r] = inverse_of_power(power);
          } else {
#pragma unroll
            for (int i = 0; i < 2 * kSteps; ++i) q[f].a[i / 2][i % 2 * 2 + r] = two(from, pair_column(i));
          }
        }
      }
      if constexpr (kConfig.converts() && !kConfig.shared_queries) convert(q);
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
    /// Bytes of steps k and k + 1: words 2 i and 2 i + 1 are of both halves of the keys, of step k + i.
    __device__ __forceinline__ void key_bytes(unsigned (&words)[4], int key, int k) const {
      const int own = lane() % 16, chunk = k + 1 < kSteps ? k + lane() / 16 : k;
      ptx::load_matrices<false>(
          words, base_ + kMemory.k + read_ + (key + own) * kMemory.k_pitch + turned<kMemory.k_pitch>(16 * chunk, own));
    }
    /// Bytes of out fragments d and d + 1: words 2 i and 2 i + 1 are of both halves of the keys, of fragment d + i.
    __device__ __forceinline__ void value_bytes(unsigned (&words)[4], int key, int d) const {
      const int own = lane() % 16, chunk = (d + 1) * kOuts < kConfig.v_columns() ? d + lane() / 16 : d;
      ptx::load_matrices<true>(
          words, base_ + kMemory.v + read_ + (key + own) * kMemory.v_pitch + turned<kMemory.v_pitch>(16 * chunk, own));
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

    /// The first column of the thread's pair number i of a row of queries. A thread loads four bytes of a key at once,
    /// so of 8 bits they are the four that its pairs meet in a step.
    __device__ __forceinline__ static int pair_column(int i) {
      return kConfig.converts() ? i / 2 * 16 + lane() % 4 * 4 + i % 2 * 2 : 8 * i + lane() % 4 * 2;
    }
    /// Queries as they are stored become halves. All of them have been asked for before the first one is waited for.
    template <int kFragments>
    __device__ __forceinline__ static void convert(Queries (&q)[kFragments]) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
          const auto pair = [&](int i) -> unsigned& { return q[f].a[i / 2][i % 2 * 2 + r]; };
          const float power = kConfig.q_bf16 ? power_of(pair) : 1;
#pragma unroll
          for (int i = 0; i < 2 * kSteps; ++i) pair(i) = halves(pair(i), power);
          q[f].factor[r] = inverse_of_power(power);
        }
      }
    }
    /// A pair of a query's elements as halves; of bf16 beside f16, times `power`.
    __device__ __forceinline__ static unsigned halves(unsigned pair, float power) {
      if constexpr (kConfig.q_fp8 != shared::Fp8::none) return halves_of_neighbours<kConfig.q_fp8>(pair).low;
      if constexpr (!kConfig.q_bf16) return pair;
      return ptx::pack<true>(low_bfloat(pair) * power, high_bfloat(pair) * power);
    }
    /// The power of a row of bf16, by all threads of the row. `pair(i)`: the thread's pairs.
    template <class Pair>
    __device__ __forceinline__ static float power_of(Pair&& pair) {
      float largest = 0;
#pragma unroll kPairsAtOnce
      for (int i = 0; i < 2 * kSteps; ++i) largest = largest_with(largest, pair(i));
      return power_for(quad_max(largest));
    }

    /// Two neighbours of a query, as they are stored.
    template <class Row>
    __device__ __forceinline__ static unsigned two(const Row& from, int column) {
      if (from == nullptr) return 0;
      if constexpr (kConfig.q_element_bytes() == 1) {
        const unsigned low = element<unsigned char>(from, column), high = element<unsigned char>(from, column + 1);
        return high << 8 | low;
      }
      if (kConfig.q_bytes >= 4 && column + 1 < kConfig.qk_dim) {
        return *reinterpret_cast<const unsigned*>(byte_of(from, 2 * column));
      }
      const unsigned low = element<unsigned short>(from, column), high = element<unsigned short>(from, column + 1);
      return high << 16 | low;
    }
    /// An element of a query; 0 behind its last column.
    template <class Element, class Row>
    __device__ __forceinline__ static unsigned element(const Row& from, int column) {
      if (column >= kConfig.qk_dim) return 0;
      return *reinterpret_cast<const Element*>(byte_of(from, column * static_cast<int>(sizeof(Element))));
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
    if constexpr (kConfig.converts()) {
      multiply_key_bytes(s, q, stream, key);
    } else {
      multiply_key_halves(s, q, stream, key);
    }
  }

  /// O += P V.
  template <int kFragments, int kKeyFragments, int kOutFragments>
  static __device__ __forceinline__ void add_values(Out (&o)[kFragments][kOutFragments],
                                                    const Scores (&p)[kFragments][kKeyFragments], const Stream& stream,
                                                    int key) {
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
      Weights a[kFragments];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) pack(a[f], p[f][n]);
      add_values(o, a, stream, key + kKeys * n, 0);
    }
  }
  /// P of 16 keys as it is multiplied.
  struct alignas(16) Weights {
    unsigned a[4];
  };
  static __device__ __forceinline__ void pack(Weights& weights, const Scores& p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights.a[i] = ptx::pack<kF16>(p.x[i % 2][i / 2 * 2], p.x[i % 2][i / 2 * 2 + 1]);
    }
  }
  /// O += P V of 16 keys, for the columns from fragment `first` on.
  template <int kFragments, int kOutFragments>
  static __device__ __forceinline__ void add_values(Out (&o)[kFragments][kOutFragments],
                                                    const Weights (&weights)[kFragments], const Stream& stream, int key,
                                                    int first) {
    if constexpr (kConfig.converts()) {
      add_value_bytes(o, weights, stream, key, first);
    } else {
      add_value_halves(o, weights, stream, key, first);
    }
  }

  /// A fragment of scores to shared memory, as it is multiplied: its rows stand `pitch` bytes apart.
  static __device__ __forceinline__ void leave_terms(char* to, int pitch, const Scores& x) {
    const ptx::SharedAddress own = ptx::shared_address(to) + own_row(0) * pitch + 2 * own_key(0);
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ptx::store_two(own + 8 * r * pitch + 16 * half, ptx::pack<kF16>(x.x[r][2 * half], x.x[r][2 * half + 1]));
      }
    }
  }
  /// O += X V for all keys of a block, X in shared memory as leave_terms() left it: a row for each row of O; or, with
  /// kTransposed, a row for each key. Of V the columns of fragment number `first` and on, as far as it has them.
  template <bool kTransposed, int kFragments, int kOutFragments>
  static __device__ __forceinline__ void add_terms(Out (&o)[kFragments][kOutFragments], const char* x, int pitch,
                                                   const Stream& stream, int first) {
    constexpr int kAll = kConfig.v_columns() / kOuts;
    const int lane = WarpOfThreads::lane();
    const ptx::SharedAddress own =
        ptx::shared_address(x) +
        (kTransposed ? (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16 : lane % 16 * pitch + lane / 16 * 16);
#pragma unroll 4
    for (int key = 0; key < kConfig.kv_block; key += kKeys) {
      unsigned a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        ptx::load_matrices<kTransposed>(a[f], own + (kTransposed ? key * pitch + 32 * f : 16 * f * pitch + 2 * key));
      }
#pragma unroll
      for (int d = 0; d < kOutFragments; ++d) {
        if (kAll % kOutFragments != 0 && first + d >= kAll) continue;
        unsigned b[4];
        stream.values(b, key, kOuts * (first + d));
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

  template <int kFragments, int kKeyFragments>
  static __device__ __forceinline__ void multiply_key_halves(Scores (&s)[kFragments][kKeyFragments],
                                                             const Queries (&q)[kFragments], const Stream& stream,
                                                             int key) {
#pragma unroll kStepsAtOnce
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

  /// Keys of 8 bits. The columns of a step are in another order than of 16 bits, for queries, too (pair_column).
  template <int kFragments, int kKeyFragments>
  static __device__ __forceinline__ void multiply_key_bytes(Scores (&s)[kFragments][kKeyFragments],
                                                            const Queries (&q)[kFragments], const Stream& stream,
                                                            int key) {
#pragma unroll kStepsAtOnce
    for (int k = 0; k < kSteps; k += 2) {
      unsigned words[kKeyFragments][4];
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) stream.key_bytes(words[n], key + kKeys * n, k);
#pragma unroll
      for (int step = 0; step < 2 && k + step < kSteps; ++step) {
        unsigned a[kFragments][4];
#pragma unroll
        for (int f = 0; f < kFragments; ++f) stream.query(a[f], q[f], f, k + step);
#pragma unroll
        for (int n = 0; n < kKeyFragments; ++n) {
          const Halves first = halves_of_neighbours<kConfig.k_fp8>(words[n][2 * step]),
                       second = halves_of_neighbours<kConfig.k_fp8>(words[n][2 * step + 1]);
          const unsigned b[4] = {first.low, first.high, second.low, second.high};
#pragma unroll
          for (int f = 0; f < kFragments; ++f) multiply(s[f][n], a[f], b);
        }
      }
    }
    scale_scores(s, q);
  }

  /// Values of 16 keys, whose weights are `a`.
  template <int kFragments, int kOutFragments>
  static __device__ __forceinline__ void add_value_halves(Out (&o)[kFragments][kOutFragments],
                                                          const Weights (&weights)[kFragments], const Stream& stream,
                                                          int key, int first) {
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) {
      unsigned b[4];
      stream.values(b, key, kOuts * (first + d));
#pragma unroll
      for (int f = 0; f < kFragments; ++f) multiply(o[f][d], weights[f].a, b);
    }
  }
  /// Likewise, of 8 bits.
  template <int kFragments, int kOutFragments>
  static __device__ __forceinline__ void add_value_bytes(Out (&o)[kFragments][kOutFragments],
                                                         const Weights (&weights)[kFragments], const Stream& stream,
                                                         int key, int first) {
#pragma unroll
    for (int d = 0; d < kOutFragments; d += 2) {
      unsigned words[4];
      stream.value_bytes(words, key, first + d);
#pragma unroll
      for (int i = 0; i < 2 && d + i < kOutFragments; ++i) {
        const Halves lower = halves_of_columns<kConfig.v_fp8>(words[2 * i]),
                     upper = halves_of_columns<kConfig.v_fp8>(words[2 * i + 1]);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          Out& sums = o[f][d + i];
          ptx::mma<true>(sums.x[0][0], sums.x[0][2], sums.x[1][0], sums.x[1][2], weights[f].a, lower.low, upper.low);
          ptx::mma<true>(sums.x[0][1], sums.x[0][3], sums.x[1][1], sums.x[1][3], weights[f].a, lower.high, upper.high);
        }
      }
    }
  }
};

}  // namespace heddle::portable
