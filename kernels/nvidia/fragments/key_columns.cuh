// Consumers' use of the numbers of keys (forward_sm90/key_numbers.cuh): scores become t in powers of two, or t, but for
// a term that the rows' form adds.
#pragma once

#include "ptx/shared_words.cuh"

namespace heddle {

/// The numbers of a thread's two neighbouring keys: a factor, a term and an index of the table, those that there are.
template <auto kConfig>
struct KeyPair {
  static constexpr int kNumbers = kConfig.key_numbers();
  static constexpr int kTerm = kConfig.key_factor ? 1 : 0, kEntry = kNumbers - 1;
  // One key after the other. A kernel has at most two numbers.
  float number[2 * kNumbers];
  static_assert(kNumbers == 1 || kNumbers == 2);

  __device__ __forceinline__ void load(ptx::Address from) { ptx::load_floats(from, number); }
  __device__ __forceinline__ float factor(int e) const { return number[e * kNumbers]; }
  __device__ __forceinline__ float term(int e) const { return number[e * kNumbers + kTerm]; }
  __device__ __forceinline__ ptx::Address entry(int e) const { return __float_as_uint(number[e * kNumbers + kEntry]); }
};

/// Applies the numbers of a block's keys to this thread's scores, sixteen keys after the other.
template <auto kConfig>
class KeyColumns {
 public:
  /// `scale_log2` is in the keys' factors, where there are such; `factor`: of products in 8 bits.
  __device__ __forceinline__ KeyColumns(ptx::Address numbers, ptx::Address table, float scale_log2, float factor)
      : own_(numbers + (threadIdx.x & 3) * (8 * kConfig.key_numbers())),
        scale_(kConfig.key_factor ? factor
               : kConfig.fp8()    ? scale_log2 * factor
                                  : scale_log2) {
    if constexpr (kReads) {
      const int thread = static_cast<int>(threadIdx.x & 127),
                first = (static_cast<int>(threadIdx.x) - 128 - thread) / 2;
      const ptx::Address own = table + 4 * (first + 16 * (thread >> 5) + ((thread & 31) >> 2));
      rows_[0] = static_cast<ptx::Address>(ptx::load_word(own));
      rows_[1] = static_cast<ptx::Address>(ptx::load_word(own + 32));
    }
  }

  /// The keys 16 c to 16 c + 15 of the block.
  __device__ __forceinline__ void load(int c) {
    pairs_[0].load(own_ + 64 * c * kConfig.key_numbers());
    pairs_[1].load(own_ + (64 * c + 32) * kConfig.key_numbers());
  }
  /// Register i of these, `x`, becomes t + `from`.
  __device__ __forceinline__ float operator()(int i, float x, float from) const {
    const KeyPair<kConfig>& pair = pairs_[(i >> 2) & 1];
    if constexpr (kConfig.key_factor && kConfig.fp8()) x *= scale_;
    const float by = kConfig.key_factor ? pair.factor(i & 1) : scale_;
    if constexpr (kConfig.key_term) from += pair.term(i & 1);
    if constexpr (kReads) from += ptx::load_float(rows_[(i >> 1) & 1] + pair.entry(i & 1));
    return fmaf(x, by, from);
  }
  /// All of a block's scores.
  __device__ __forceinline__ void fold(float (&s)[kConfig.kv_block / 2]) {
#pragma unroll
    for (int c = 0; c < kConfig.kv_block / 16; ++c) {
      load(c);
#pragma unroll
      for (int i = 8 * c; i < 8 * c + 8; ++i) s[i] = (*this)(i, s[i], 0.0F);
    }
  }

 private:
  static constexpr bool kReads = kConfig.table_entries > 0;
  ptx::Address own_;
  float scale_;
  ptx::Address rows_[2];  // where the entries of the thread's rows begin
  KeyPair<kConfig> pairs_[2];
};

/// kKeyTerms... of a block.
__device__ __forceinline__ int key_flags(ptx::Address flags) {
  return ptx::load_word(flags) | ptx::load_word(flags + 4);
}

}  // namespace heddle
