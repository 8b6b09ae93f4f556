// Fragments of AMD's matrix instructions: S^T = K Q^T and O^T = V^T P^T, so that a query is a lane's own: its maximum,
// its sum and its factor are one register, and a row is complete in a lane and the one in the other half of the wave.
// Keys stand by rows in shared memory, values by columns: they are transposed in registers between the loads of a step
// and the stores of the next part. f16 and bf16; elements of 8 bits become f16 as they are loaded (kConfig.converts()).
//
// `Layout` is the architecture's: where a lane's elements of operands and results are, and the instruction.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "portable/amd_instructions.cuh"
#include "portable/fragments/halves_of_eight_bits.cuh"
#include "portable/fragments/of_each_thread.cuh"
#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/powers_of_rows.cuh"
#include "portable/fragments/split_rows.cuh"
#include "shared/strided.h"

namespace heddle::portable {

template <auto kConfig, class Layout>
struct AmdFragments : OfEachThread {
  using Real = float;
  static constexpr int kWave = kConfig.shape().wave, kRows = kConfig.shape().rows, kThreads = kConfig.threads();
  static constexpr int kKeys = Layout::kKeys, kOuts = Layout::kKeys, kOwnRows = 1, kOwnKeys = Layout::kOwn,
                       kOwnOuts = Layout::kOwn, kOutRun = Layout::kRun;
  static constexpr int kWords = Layout::kWords;  // of an operand
  static constexpr bool kF16 = kConfig.storage == shared::Storage::f16;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  // One k-step of the first product reads columns of a row that are there, one of the second product keys of one
  // fragment.
  static_assert(kConfig.qk_columns() % Layout::kDepth == 0 && kKeys % Layout::kDepth == 0);

  static __device__ __forceinline__ int thread() { return amd::thread(); }
  static __device__ __forceinline__ int threads() { return kThreads; }
  static __device__ __forceinline__ int lane() { return amd::thread() % kWave; }
  static __device__ __forceinline__ int wave() { return amd::uniform(amd::thread() / kWave); }
  static __device__ __forceinline__ int own_row(int) { return lane() % kRows; }
  static __device__ __forceinline__ int own_key(int c) { return Layout::own(lane(), c); }
  static __device__ __forceinline__ int own_out(int c) { return Layout::own(lane(), c); }
  static __device__ __forceinline__ bool first_of_row() { return lane() < kRows; }

  static __device__ __forceinline__ void barrier() { amd::barrier(); }
  static __device__ __forceinline__ bool any_of_wave(bool x) { return amd::any<kWave>(x); }
  static __device__ __forceinline__ float exp2(float x) { return amd::exp2(x); }
  static __device__ __forceinline__ float log2(float x) { return amd::log2(x); }
  static __device__ __forceinline__ float reciprocal(float x) { return amd::reciprocal(x); }
  static __device__ __forceinline__ float other_half(float x) {
    return amd::settled(__builtin_bit_cast(float, amd::other_half<kWave>(__builtin_bit_cast(unsigned, x))));
  }
  static __device__ __forceinline__ float row_max(float x) { return larger(x, other_half(x)); }
  static __device__ __forceinline__ float row_sum(float x) { return x + other_half(x); }
  static __device__ __forceinline__ unsigned short half_bits(float x) {
    return static_cast<unsigned short>(amd::rounded<true>(x));
  }
  static __device__ __forceinline__ unsigned short bfloat_bits(float x) {
    return static_cast<unsigned short>(amd::rounded<false>(x));
  }

  using Scores = OwnElements<float, 1, kOwnKeys>;
  using Out = Scores;
  static __device__ __forceinline__ void clear(Scores& s) {
#pragma unroll
    for (int c = 0; c < kOwnKeys; ++c) s.x[0][c] = 0;
  }

  static constexpr int kSteps = kConfig.qk_columns() / Layout::kDepth;  // of the depth of Q K^T
  struct Queries {
    unsigned b[kConfig.shared_queries ? 1 : kSteps][kWords];
    float factor[kOwnRows];  // converts(): of the products of the thread's row
  };

  class Stream {
   public:
    __device__ __forceinline__ explicit Stream(char* memory) : memory_(memory) {}

    template <class Source>
    __device__ __forceinline__ void ask_keys(const Source& keys, int first, int end) {
      if constexpr (kConfig.blocks == shared::StepBlocks::both_ways) {
        ask_values(keys, first, end);
        return;
      }
#pragma unroll
      for (int i = 0; i < kKeyChunks; ++i) {
        const int own = i * kThreads + thread(), row = own / kChunksOfKey;
        const bool there = row < kConfig.kv_block && first + row < end;
        load<Elements{kConfig.qk_dim, kConfig.kv_bytes, kConfig.k_fp8}>(staged_[i], row_of(keys, first + row, end),
                                                                        own % kChunksOfKey * 8, there);
      }
    }
    /// 8 keys of 8 columns a time.
    template <class Source>
    __device__ __forceinline__ void ask_values(const Source& values, int first, int end) {
#pragma unroll
      for (int i = 0; i < kValueBlocks; ++i) {
        const int own = i * kThreads + thread(), block = own / kBlocksOfKeys;
#pragma unroll
        for (int row = 0; row < 8; ++row) {
          const int key = first + 8 * block + row;
          const bool there = 8 * block < kConfig.kv_block && key < end;
          load<Elements{kConfig.v_dim, kConfig.kv_bytes, kConfig.v_fp8}>(staged_[8 * i + row], row_of(values, key, end),
                                                                         own % kBlocksOfKeys * 8, there);
        }
      }
    }

    __device__ __forceinline__ void keys_arrive() {
      read_ = kMemory.stage - read_;
      if constexpr (kConfig.blocks == shared::StepBlocks::both_ways) {
        store_rows();
        values_arrive();
        return;
      }
#pragma unroll
      for (int i = 0; i < kKeyChunks; ++i) {
        const int own = i * kThreads + thread(), row = own / kChunksOfKey;
        if (kConfig.kv_block * kChunksOfKey % kThreads != 0 && row >= kConfig.kv_block) break;
        store(kMemory.k + read_ + stored(row) * kMemory.k_pitch + own % kChunksOfKey * 16, staged_[i]);
      }
      amd::barrier();
    }
    __device__ __forceinline__ void values_arrive() {
#pragma unroll
      for (int i = 0; i < kValueBlocks; ++i) {
        const int own = i * kThreads + thread(), block = own / kBlocksOfKeys, column = own % kBlocksOfKeys * 8;
        if (kBlocksOfKeys * (kConfig.kv_block / 8) % kThreads != 0 && 8 * block >= kConfig.kv_block) break;
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          Chunk keys;
#pragma unroll
          for (int pair = 0; pair < 4; ++pair) {
            const unsigned even = staged_[8 * i + 2 * pair].word[c / 2],
                           odd = staged_[8 * i + 2 * pair + 1].word[c / 2];
            keys.word[pair] = c % 2 == 0 ? amd::lower_halves(even, odd) : amd::upper_halves(even, odd);
          }
          store(kMemory.v + read_ + stored(column + c) * kMemory.v_pitch + 16 * block, keys);
        }
      }
      amd::barrier();
    }
    __device__ __forceinline__ void end() const {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none.
    template <int kFragments, class Row>
    __device__ __forceinline__ void load_queries(Queries (&q)[kFragments], Row&& row) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        const auto from = row(f);
        const float power = kConfig.q_bf16 ? power_of(from) : 1;
        if constexpr (kConfig.converts()) q[f].factor[0] = inverse_of_power(power);
        if constexpr (kConfig.shared_queries) {
#pragma unroll
          for (int i = 0; i < kSharedChunks; ++i) {
            const int chunk = shared_chunk(i);
            Chunk loaded;
            load<kOfQueries>(loaded, from, 8 * chunk, from != nullptr);
#pragma unroll
            for (int w = 0; w < 4; ++w) loaded.word[w] = halves(loaded.word[w], power);
            if (kConfig.key_waves > 1 && wave() >= kConfig.row_waves) continue;  // one of those that share the rows
            store(queries_of_wave() + (kRows * f + lane() % kRows) * kMemory.k_pitch + 16 * chunk, loaded);
          }
        } else {
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
#pragma unroll
            for (int w = 0; w < kWords; ++w) {
              const int column = Layout::kDepth * k + Layout::operand(lane()) + 2 * w;
              q[f].b[k][w] = halves(two<kOfQueries>(from, column, from != nullptr), power);
            }
          }
        }
      }
    }

    /// The second operand of step k of the depth.
    __device__ __forceinline__ void query(unsigned (&b)[kWords], const Queries& q, int f, int k) const {
      if constexpr (kConfig.shared_queries) {
        operand(b, queries_of_wave() + (kRows * f + lane() % kRows) * kMemory.k_pitch, Layout::kDepth * k);
      } else {
#pragma unroll
        for (int w = 0; w < kWords; ++w) b[w] = q.b[k][w];
      }
    }
    /// The first operand: kKeys keys from `key` on; kOuts columns of values from `column` on.
    __device__ __forceinline__ void keys(unsigned (&a)[kWords], int key, int k) const {
      operand(a, kMemory.k + read_ + (key + lane() % kKeys) * kMemory.k_pitch, Layout::kDepth * k);
    }
    __device__ __forceinline__ void values(unsigned (&a)[kWords], int column, int key) const {
      operand(a, kMemory.v + read_ + (column + lane() % kOuts) * kMemory.v_pitch, key);
    }

   private:
    struct alignas(16) Chunk {
      unsigned word[4];
    };
    struct alignas(8) Part {
      unsigned word[2];
    };
    /// Rows in global memory: elements, a power of two that divides addresses, and the type if it has 8 bits.
    struct Elements {
      int dim, bytes;
      shared::Fp8 type;
    };
    static constexpr Elements kOfQueries = {kConfig.qk_dim, kConfig.q_bytes, kConfig.q_fp8};

    // shared_queries: 8 columns of a row each, which the threads that share the row bring.
    static constexpr int kSharing = kWave / kRows, kSharedChunks = kConfig.qk_columns() / 8 / kSharing;
    __device__ __forceinline__ static int shared_chunk(int i) { return i * kSharing + lane() / kRows; }

    /// The power of a row of bf16, by all threads of the row.
    template <class Row>
    __device__ __forceinline__ static float power_of(const Row& from) {
      float largest = 0;
#pragma unroll 4
      for (int i = 0; i < kSharedChunks; ++i) {
        Chunk loaded;
        load<kOfQueries>(loaded, from, 8 * shared_chunk(i), from != nullptr);
#pragma unroll
        for (int w = 0; w < 4; ++w) largest = largest_with(largest, loaded.word[w]);
      }
      return power_for(row_max(largest));
    }
    /// A pair of a query's elements as it is multiplied: of bf16 beside f16, times `power`.
    __device__ __forceinline__ static unsigned halves(unsigned pair, float power) {
      if constexpr (!kConfig.q_bf16) return pair;
      return amd::pack<true>(low_bfloat(pair) * power, high_bfloat(pair) * power);
    }

    static constexpr int kChunksOfKey = kConfig.qk_columns() / 8, kBlocksOfKeys = kConfig.v_columns() / 8;
    static constexpr int kKeyChunks = (kConfig.kv_block * kChunksOfKey + kThreads - 1) / kThreads;
    static constexpr int kValueBlocks = (kConfig.kv_block / 8 * kBlocksOfKeys + kThreads - 1) / kThreads;
    static constexpr int kStaged =
        kConfig.blocks == shared::StepBlocks::keys || kKeyChunks > 8 * kValueBlocks ? kKeyChunks : 8 * kValueBlocks;

    /// A block that ask_values() loaded, by rows.
    __device__ __forceinline__ void store_rows() const {
#pragma unroll
      for (int i = 0; i < kValueBlocks; ++i) {
        const int own = i * kThreads + thread(), block = own / kBlocksOfKeys, column = own % kBlocksOfKeys * 8;
        if (kBlocksOfKeys * (kConfig.kv_block / 8) % kThreads != 0 && 8 * block >= kConfig.kv_block) break;
        if (kConfig.qk_columns() < kConfig.v_columns() && column >= kConfig.qk_columns()) continue;
#pragma unroll
        for (int row = 0; row < 8; ++row) {
          store(kMemory.k + read_ + stored(8 * block + row) * kMemory.k_pitch + 2 * column, staged_[8 * i + row]);
        }
      }
    }

    /// Where row r of what the first operand reads stands, so that a lane's results are neighbours.
    __device__ __forceinline__ static int stored(int r) { return r / kKeys * kKeys + Layout::stored(r % kKeys); }
    __device__ __forceinline__ static int queries_of_wave() {
      return kMemory.q + wave() % kConfig.row_waves * (kConfig.wave_rows() * kMemory.k_pitch);
    }
    template <class Source>
    __device__ __forceinline__ static auto row_of(const Source& source, int key, int end) {
      const int last = end > 0 ? end - 1 : 0;
      return source.row(key < last ? key : last);
    }

    __device__ __forceinline__ void store(int at, const Chunk& chunk) const {
      *reinterpret_cast<Chunk*>(memory_ + at) = chunk;
    }
    /// Neighbours of a row from `first` on: those that the layout gives this lane.
    __device__ __forceinline__ void operand(unsigned (&x)[kWords], int row, int first) const {
      const char* from = memory_ + row + 2 * (first + Layout::operand(lane()));
      if constexpr (kWords == 2) {
        const Part part = *reinterpret_cast<const Part*>(from);
        x[0] = part.word[0], x[1] = part.word[1];
      } else {
#pragma unroll
        for (int i = 0; i < kWords; i += 4) {
          const Chunk chunk = *reinterpret_cast<const Chunk*>(from + 4 * i);
#pragma unroll
          for (int w = 0; w < 4; ++w) x[i + w] = chunk.word[w];
        }
      }
    }

    /// Two neighbours of a row in global memory, of 8 bits as halves; missing elements are 0.
    template <Elements kOf, class Row>
    __device__ __forceinline__ static unsigned two(const Row& from, int column, bool there) {
      constexpr bool kHas8Bits = kOf.type != shared::Fp8::none;
      constexpr int kSize = kHas8Bits ? 1 : 2;
      if (!there || column >= kOf.dim) return 0;
      unsigned pair;
      if (kOf.bytes >= 2 * kSize && (kOf.dim % 2 == 0 || column + 1 < kOf.dim)) {
        const char* const both = byte_of(from, kSize * column);
        pair = kHas8Bits ? *reinterpret_cast<const unsigned short*>(both) : *reinterpret_cast<const unsigned*>(both);
      } else {
        const auto element = [&](int c) -> unsigned {
          const char* const at = byte_of(from, kSize * c);
          return kHas8Bits ? *reinterpret_cast<const unsigned char*>(at) : *reinterpret_cast<const unsigned short*>(at);
        };
        pair = (column + 1 < kOf.dim ? element(column + 1) << 8 * kSize : 0U) | element(column);
      }
      if constexpr (!kHas8Bits) return pair;
      return halves_of_neighbours<kOf.type>(pair).low;
    }
    /// Eight neighbours.
    template <Elements kOf, class Row>
    __device__ __forceinline__ static void load(Chunk& to, const Row& from, int column, bool there) {
      const bool whole = kOf.dim % 8 == 0 || column + 8 <= kOf.dim;
      const bool any = there && (kOf.dim % 8 != 0 || column < kOf.dim);
      if constexpr (kOf.type == shared::Fp8::none) {
        if (kOf.bytes == 16 && whole) {
          to = Chunk{};
          if (any) to = *reinterpret_cast<const Chunk*>(byte_of(from, 2 * column));
          return;
        }
      } else if (kOf.bytes >= 8 && whole) {
        Part bytes{};
        if (any) bytes = *reinterpret_cast<const Part*>(byte_of(from, column));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Halves halves = halves_of_neighbours<kOf.type>(bytes.word[i]);
          to.word[2 * i] = halves.low, to.word[2 * i + 1] = halves.high;
        }
        return;
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) to.word[w] = two<kOf>(from, column + 2 * w, there);
    }

    char* memory_;
    int read_ = kMemory.stage;  // where the buffer of keys that is read begins; the other one is filled
    Chunk staged_[kStaged];
  };

  /// S^T = K Q^T for the wave's keys from `key` on.
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
      unsigned b[kFragments][kWords];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) stream.query(b[f], q[f], f, k);
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) {
        unsigned a[kWords];
        stream.keys(a, key + kKeys * n, k);
#pragma unroll
        for (int f = 0; f < kFragments; ++f) Layout::template multiply<kF16>(s[f][n].x[0], a, b[f]);
      }
    }
    if constexpr (kConfig.converts()) scale_scores(s, q);
  }

  /// O^T += V^T P^T.
  template <int kFragments, int kKeyFragments, int kOutFragments>
  static __device__ __forceinline__ void add_values(Out (&o)[kFragments][kOutFragments],
                                                    const Scores (&p)[kFragments][kKeyFragments], const Stream& stream,
                                                    int key) {
    constexpr int kKeySteps = kKeys / Layout::kDepth;
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int j = 0; j < kKeySteps; ++j) {
        unsigned b[kFragments][kWords];
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          constexpr int kOwnWords = kOwnKeys / 2 / kKeySteps;
          unsigned own[kOwnWords];
#pragma unroll
          for (int w = 0; w < kOwnWords; ++w) {
            const int at = 2 * (kOwnWords * j + w);
            own[w] = amd::pack<kF16>(p[f][n].x[0][at], p[f][n].x[0][at + 1]);
          }
          Layout::weights(b[f], own, lane());
        }
#pragma unroll
        for (int d = 0; d < kOutFragments; ++d) {
          unsigned a[kWords];
          stream.values(a, kOuts * d, key + kKeys * n + Layout::kDepth * j);
#pragma unroll
          for (int f = 0; f < kFragments; ++f) Layout::template multiply<kF16>(o[f][d].x[0], a, b[f]);
        }
      }
    }
  }
};

}  // namespace heddle::portable
