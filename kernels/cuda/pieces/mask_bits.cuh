// A mask found before the scores have come, as bits (shared/mask_bits.h), for masks that are more than a comparison an
// element. While tensor cores compute the scores, a warp finds out what it can for all its rows at once:
//
// - What depends on kv_idx - q_idx alone (`distance_...`): each of the 15 + kv_block distances once; a vote makes words
//   of them, of which a thread takes its own by shifts. Where it repeats from block to block, once a tile.
// - The rest (`mask_...`): where all the warp's rows have the same values (one document, say) each key once, by votes
//   in the order of a thread's bits. Else each element.
//
// The scores then cost one selection each.
#pragma once

#include "pieces/elements.cuh"
#include "ptx/math.cuh"
#include "shared/mask_bits.h"

namespace heddle {

using shared::ForwardSm90Config;

/// A kernel that masks its scores otherwise has none.
template <ForwardSm90Config kConfig, bool kUsed>
class MaskBits {};

template <ForwardSm90Config kConfig>
class MaskBits<kConfig, true> {
 public:
  static constexpr int kN = kConfig.kv_block;

  /// Before a tile's first block.
  __device__ __forceinline__ void begin_tile() {
    if constexpr (kRemembers) repeats_to_ = kNowhere;
  }
  /// The bits found last are those of this block, too.
  __device__ __forceinline__ bool has(int kv_first) const {
    if constexpr (!kRemembers) return false;
    return kv_first <= repeats_to_;
  }

  /// The bits of a block. All threads of a warp call together.
  __device__ __forceinline__ void find(const shared::ForwardSm90Params& params, const BlockPlace& at) {
    if constexpr (kConfig.mask == shared::MaskForm::distance) {
      find_distances(params, at);
    } else {
      const shared::MaskWords values = bits_of_values(params.mod, at);
      if constexpr (kConfig.mask == shared::MaskForm::both) find_distances(params, at);
      for (int r = 0; r < 2; ++r) {
        bits_.row[r] = kConfig.mask == shared::MaskForm::both ? bits_.row[r] & values.row[r] : values.row[r];
      }
    }
    // Here, while the product runs, not where they are used.
    for (unsigned& row : bits_.row) asm volatile("" : "+r"(row));
  }

  /// What does not attend becomes -inf.
  __device__ __forceinline__ void apply(float (&s)[kN / 2]) const {
    constexpr unsigned kAll = shared::mask_bits_of(kN);
    if (__all_sync(~0U, (bits_.row[0] & bits_.row[1] & kAll) == kAll)) return;
      // In the order of the bits: that the compiler moves seven of them to predicates at once.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int bit = 0; bit < 32; ++bit) {
        const int i = shared::mask_column(bit) / 8 * 4 + 2 * r + bit % 2;
        if (i < kN / 2 && !(bits_.row[r] & 1U << bit)) s[i] = -ptx::infinity();
      }
    }
  }

 private:
  // Where there is nothing else, the bits stay from block to block.
  static constexpr bool kRemembers = kConfig.mask == shared::MaskForm::distance;
  static constexpr int kNowhere = -1;

  __device__ __forceinline__ static int lane() { return threadIdx.x & 31; }

  __device__ __forceinline__ void find_distances(const shared::ForwardSm90Params& params, const BlockPlace& at) {
    constexpr int kWords = shared::distance_bit_words(kN);
    const int least = at.kv_first - (at.q_idx - lane() / 4) - 15;
    if constexpr (kRemembers) {
      // From a block on that is so far left, in those that are.
      const int last = at.kv_first + params.mask_repeats_to - (least + kN + 14);
      // (Shuffled, it is one number for the warp, and the compiler knows it: it takes no register of the threads.)
      repeats_to_ = __shfl_sync(~0U, at.kv_first <= last ? last : kNowhere, 0);
    }
    // It reads nothing of the positions but their distance.
    const DistanceUniform uniform = distance_uniform(params.mod, at.batch, at.head);
    const DistanceRow row = distance_row(params.mod, uniform, at.batch, at.head, 0);
    const auto word = [&](int i) {
      const int distance = least + 32 * i + lane();
      const DistanceColumn column = distance_column(params.mod, uniform, at.batch, at.head, distance);
      return __ballot_sync(~0U, distance_element(params.mod, uniform, row, column, at.batch, at.head, 0, distance));
    };
    unsigned words[kWords];
    if constexpr (DistanceMod::kLongElement && kConfig.warpgroups == 3) {
      // One after the other, since registers are few: lane i keeps word i.
      unsigned own = 0;
#pragma unroll 1
      for (int i = 0; i < kWords; ++i) {
        const unsigned next = word(i);
        if (lane() == i) own = next;
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = __shfl_sync(~0U, own, i);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = word(i);
    }
    bits_ = shared::words_of_distances<kN>(words, lane());
  }

  __device__ __forceinline__ static shared::MaskWords bits_of_values(const shared::ModValues& mod,
                                                                     const BlockPlace& at) {
    const MaskUniform uniform = mask_uniform(mod, at.batch, at.head);
    const MaskRow rows[2] = {mask_row(mod, uniform, at.batch, at.head, at.q_idx),
                             mask_row(mod, uniform, at.batch, at.head, at.q_idx + 8)};
    if constexpr (!MaskMod::kReadsQuery) {
      const MaskRow first = MaskMod::row_from_lane(rows[0], 0);
      if (__all_sync(~0U, MaskMod::same_row(rows[0], first) & MaskMod::same_row(rows[1], first))) {
        const unsigned word = bits_of_row(mod, at, uniform, rows[0]);
        return {{word, word}};
      }
    }
    return bits_of_elements(mod, at, uniform, rows);
  }

  /// Of rows that are all alike: the warp has four words, one for each column of a quad, and each bit's thread finds
  /// one of each.
  __device__ __forceinline__ static unsigned bits_of_row(const shared::ModValues& mod, const BlockPlace& at,
                                                         const MaskUniform& uniform, const MaskRow& row) {
    const int first = at.kv_first + shared::mask_column(lane());
    unsigned own = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int kv_idx = first + 2 * t;
      const MaskColumn column = mask_column(mod, uniform, at.batch, at.head, kv_idx);
      const unsigned word =
          __ballot_sync(~0U, mask_element(mod, uniform, row, column, at.batch, at.head, at.q_idx, kv_idx));
      if ((lane() & 3) == t) own = word;
    }
    return own;
  }

  /// Of each element, in loops, since what reads takes registers: 32 columns at a time, whose reads are the warp's, and
  /// 16 of them, or 4 if an element reads for itself, side by side.
  __device__ __forceinline__ static shared::MaskWords bits_of_elements(const shared::ModValues& mod,
                                                                       const BlockPlace& at, const MaskUniform& uniform,
                                                                       const MaskRow (&rows)[2]) {
    constexpr int kAtOnce = MaskMod::kLongElement || kConfig.warpgroups == 3 ? 1 : 4;
    shared::MaskWords bits = {{0, 0}};
#pragma unroll 1
    for (int i = 0; i < (kN + 31) / 32; ++i) {
      const int kv_first = at.kv_first + 32 * i;
      const MaskColumns<32> columns(mod, uniform, at.batch, at.head, kv_first);
#pragma unroll kAtOnce
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int kv_idx = kv_first + 2 * (threadIdx.x & 3) + 8 * j + e;
          const MaskColumn column = columns.at(j, e);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const bool attends =
                mask_element(mod, uniform, rows[r], column, at.batch, at.head, at.q_idx + 8 * r, kv_idx);
            bits.row[r] |= (attends ? 1U << shared::mask_bit(j, e) : 0U) << 2 * i;
          }
        }
      }
    }
    return bits;
  }

  shared::MaskWords bits_;  // of the block
  int repeats_to_ = -1;     // they are those of the tile's blocks up to this first key, too
};

}  // namespace heddle
