// P and dS of a step in shared memory (kConfig.adds_d_q), where waves that have neither's scores multiply them: dq sums
// over the tile's keys, of which each wave has some; and where waves share rows (kConfig.shares_terms()), each of them
// multiplies all queries of the step for some columns of dk and dv.
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"

namespace heddle::portable {

template <auto kConfig>
class SharedTerms {
 public:
  /// `memory`: the CTA's, by backward_mma_memory().
  __device__ __forceinline__ explicit SharedTerms(char* memory) : memory_(memory) {}

  __device__ __forceinline__ char* slopes() const { return memory_ + kMemory.slopes; }
  __device__ __forceinline__ char* weights() const { return memory_ + kMemory.weights; }
  /// The terms of a key of the tile.
  __device__ __forceinline__ static const char* of_key(const char* terms, int key) {
    return terms + key * kMemory.term_pitch;
  }
  /// The terms of a query of the step, for all keys.
  __device__ __forceinline__ static const char* of_query(const char* terms, int query) {
    return terms + query * kBytes;
  }

  /// A wave's terms, from key `key` of the tile and query `query` of the step on. `F`: the fragments that have them.
  template <class F, int kFragments, int kSteps>
  __device__ __forceinline__ static void leave(char* terms, const typename F::Scores (&x)[kFragments][kSteps], int key,
                                               int query) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int n = 0; n < kSteps; ++n) leave<F>(terms, x[f][n], key + f * kShape.rows, query + n * F::kKeys);
    }
  }
  /// Likewise, where the wave's keys attend none of these queries.
  template <class F>
  __device__ __forceinline__ static void leave_zeros(char* terms, int key, int query) {
    typename F::Scores zeros;
    F::clear(zeros);
#pragma unroll 1
    for (int f = 0; f < kConfig.row_fragments; ++f) {
#pragma unroll 1
      for (int n = 0; n < kConfig.wave_step(); n += F::kKeys) leave<F>(terms, zeros, key + f * kShape.rows, query + n);
    }
  }

 private:
  static constexpr shared::Fragments kShape = kConfig.shape();
  static constexpr shared::BackwardMmaMemory kMemory = shared::backward_mma_memory(kConfig);
  static constexpr int kBytes = shared::bytes_of(kConfig.storage);

  template <class F>
  __device__ __forceinline__ static void leave(char* terms, const typename F::Scores& x, int key, int query) {
    F::leave_terms(terms + key * kMemory.term_pitch + query * kBytes, kMemory.term_pitch, x);
  }

  char* memory_;
};

}  // namespace heddle::portable
