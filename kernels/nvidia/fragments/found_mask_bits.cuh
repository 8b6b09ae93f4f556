// A mask found before the scores have come, as bits (shared/mask_bits.h), for masks that are more than a comparison an
// element. While tensor cores compute the scores, a warp finds out what it can for all its rows at once:
//
// - What depends on kv_idx - q_idx alone: a range of distances is two shifts a row; of another kind (`distance_...`)
//   each of the 15 + kv_block distances is asked once, and votes make words of them. Where it repeats from block to
//   block, once a tile.
// - The rest (`mask_...`): where all the warp's rows have the same values (one document, say) each key once, by votes.
//   Else each element.
//
// The scores then cost one selection each, in quarters of a block in which something does not attend; or, where a
// thread's bits are the same two again and again (dilations), none.
//
// Or it was found before any run (shared/stored_mask.h): then a thread loads its words as soon as it knows the block.
#pragma once

#include "fragments/elements.cuh"
#include "ptx/math.cuh"
#include "shared/mask_bits.h"
#include "shared/mod_forms.h"
#include "shared/stored_mask.h"

namespace heddle {

/// A kernel that masks its scores otherwise has none.
template <auto kConfig, bool kUsed>
class MaskBits {
 public:
  static constexpr bool kRemembers = false;
};

template <auto kConfig>
class MaskBits<kConfig, true> {
 public:
  static constexpr int kN = kConfig.kv_block;
  /// If a mask reads distances alone, the bits stay from block to block.
  static constexpr bool kRemembers = kConfig.mask == shared::MaskForm::distance && !kConfig.mask_range;

  /// Before a tile's first block.
  __device__ __forceinline__ void begin_tile() {
    knows_ = false;
    if constexpr (kRemembers) repeats_to_ = kNowhere;
  }
  /// The bits found last are those of this block, too.
  __device__ __forceinline__ bool has(int kv_first) const {
    if constexpr (!kRemembers) return false;
    return kv_first <= repeats_to_;
  }

  /// The bits of a block. All threads of a warp call together.
  __device__ __forceinline__ void find(const shared::ModValues& mod, int repeats_to, const BlockOrigin& at) {
    if (!knows_) know(mod, at);
    if constexpr (kConfig.masks_by_values()) bits_ = bits_of_values(mod, at);
    if constexpr (kConfig.masks_by_distance()) {
      const shared::MaskWords near = kConfig.mask_range ? bits_of_range(at) : bits_of_distances(mod, repeats_to, at);
      for (int r = 0; r < 2; ++r) bits_.row[r] = kConfig.masks_by_values() ? bits_.row[r] & near.row[r] : near.row[r];
    }
    // Here, while the product runs, not where they are used.
    for (unsigned& row : bits_.row) asm volatile("" : "+r"(row));
  }

  /// Stored: has the thread's words loaded, if they are wanted. Nothing waits for them before they are applied.
  __device__ __forceinline__ void load(const shared::MaskWords* words, bool wanted) {
    // Set even if they are not wanted, so that no register keeps the last block's.
    bits_ = {{0, 0}};
    if (wanted) {
      asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                   : "=r"(bits_.row[0]), "=r"(bits_.row[1])
                   : "l"(words));
    }
  }

  /// Each thread's columns attend as its first two do: bits e of its upper row, 2 + e of its lower one.
  __device__ __forceinline__ bool repeats_two() const {
    return __all_sync(~0U, shared::repeats_two<kN>(bits_.row[0]) & shared::repeats_two<kN>(bits_.row[1]));
  }
  __device__ __forceinline__ unsigned first_two() const { return (bits_.row[0] & 3) | (bits_.row[1] & 3) << 2; }

  /// Scores that do not attend become -inf.
  __device__ __forceinline__ void apply(float (&s)[kN / 2]) const {
    constexpr int kQuarter = 8;  // bits: of 32 columns
    const unsigned all = __reduce_and_sync(~0U, bits_.row[0] & bits_.row[1]);
#pragma unroll
    for (int first = 0; first < kN / 4; first += kQuarter) {
      constexpr unsigned kBits = shared::first_bits(kQuarter);
      const unsigned these = shared::mask_bits_of(kN) >> first & kBits;
      if ((all >> first & these) == these) continue;
        // In the order of the bits: that the compiler moves seven of them to predicates at once.
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int bit = first; bit < first + kQuarter; ++bit) {
          const int i = shared::mask_column(bit) / 8 * 4 + 2 * r + bit % 2;
          if (i < kN / 2 && !(bits_.row[r] & 1U << bit)) s[i] = -ptx::infinity();
        }
      }
    }
  }

 private:
  static constexpr int kNowhere = -1;

  __device__ __forceinline__ static int lane() { return threadIdx.x & 31; }
  /// (Shuffled, a number is one for the warp, and the compiler knows it: it takes no register of the threads.)
  __device__ __forceinline__ static int of_warp(int x) { return __shfl_sync(~0U, x, 0); }

  /// Computes the part that a tile's blocks share, once one of them is partial.
  __device__ __forceinline__ void know(const shared::ModValues& mod, const BlockOrigin& at) {
    knows_ = true;
    if constexpr (kConfig.mask_range) {
      least_ = of_warp(uniform_value<LeastMod>(mod, at, least_element));
      most_ = of_warp(uniform_value<MostMod>(mod, at, most_element));
    }
    if constexpr (kConfig.masks_by_values() && !MaskMod::kReadsQuery) {
      const MaskUniform uniform = mask_uniform(mod, at.batch, at.head);
      const MaskRow rows[2] = {mask_row(mod, uniform, at.batch, at.head, at.q_idx),
                               mask_row(mod, uniform, at.batch, at.head, at.q_idx + 8)};
      row_ = MaskMod::row_from_lane(rows[0], 0);
      alike_ = __all_sync(~0U, MaskMod::same_row(rows[0], row_) & MaskMod::same_row(rows[1], row_));
    }
  }

  __device__ __forceinline__ shared::MaskWords bits_of_range(const BlockOrigin& at) const {
    return shared::words_of_range(least_, most_, at.kv_first + 2 * (threadIdx.x & 3) - at.q_idx);
  }

  __device__ __forceinline__ shared::MaskWords bits_of_distances(const shared::ModValues& mod, int repeats_to,
                                                                 const BlockOrigin& at) {
    const int least = at.kv_first - (at.q_idx - lane() / 4) - 15;
    if constexpr (kRemembers) {
      // From a block on that is so far left, in those that are.
      const int last = repeats_to + (at.q_idx - lane() / 4) - (kN - 1);
      repeats_to_ = of_warp(at.kv_first <= last ? last : kNowhere);
    }
    // It reads nothing of the positions but their distance.
    const DistanceUniform uniform = distance_uniform(mod, at.batch, at.head);
    const DistanceRow row = distance_row(mod, uniform, at.batch, at.head, 0);
    const auto votes = [&](int number) {
      const int distance = least + number;
      const DistanceColumn column = distance_column(mod, uniform, at.batch, at.head, distance);
      return __ballot_sync(~0U, distance_element(mod, uniform, row, column, at.batch, at.head, 0, distance));
    };
    // One after the other if registers are few.
    constexpr int kAtOnce = DistanceMod::kLongElement && kConfig.warpgroups == 3 ? 1 : shared::kDistanceWords;
    unsigned word = 0;
#pragma unroll kAtOnce
    for (int i = 0; i < shared::kDistanceWords; ++i) {
      const unsigned next = votes(shared::distance_number(i, lane()));
      if (lane() % shared::kDistanceWords == i) word = next;
    }
    word = __shfl_sync(~0U, word, shared::distance_word(lane()));
    const unsigned past = shared::has_past_distances(kN) ? votes(shared::kPastDistances + lane()) : 0;
    return shared::words_of_distances(word, past, lane());
  }

  __device__ __forceinline__ shared::MaskWords bits_of_values(const shared::ModValues& mod,
                                                              const BlockOrigin& at) const {
    const MaskUniform uniform = mask_uniform(mod, at.batch, at.head);
    if constexpr (!MaskMod::kReadsQuery) {
      if (alike_) {
        const unsigned word = bits_of_row(mod, at, uniform, row_);
        return {{word, word}};
      }
    }
    return bits_of_elements(mod, at, uniform);
  }

  /// Bits of rows that are all alike.
  __device__ __forceinline__ static unsigned bits_of_row(const shared::ModValues& mod, const BlockOrigin& at,
                                                         const MaskUniform& uniform, const MaskRow& row) {
    const int first = at.kv_first + 4 * lane();
    unsigned words[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const MaskColumn column = mask_column(mod, uniform, at.batch, at.head, first + t);
      words[t] = __ballot_sync(~0U, mask_element(mod, uniform, row, column, at.batch, at.head, at.q_idx, first + t));
    }
    const bool right = (threadIdx.x & 1) != 0;
    return shared::word_of_keys(right ? words[2] : words[0], right ? words[3] : words[1], lane());
  }

  /// Bits of each element, in loops, since reads take registers: 32 columns at a time, whose reads are the warp's, and
  /// 16 of them, or 4 if an element reads for itself, side by side.
  __device__ __forceinline__ static shared::MaskWords bits_of_elements(const shared::ModValues& mod,
                                                                       const BlockOrigin& at,
                                                                       const MaskUniform& uniform) {
    const MaskRow rows[2] = {mask_row(mod, uniform, at.batch, at.head, at.q_idx),
                             mask_row(mod, uniform, at.batch, at.head, at.q_idx + 8)};
    constexpr int kAtOnce = MaskMod::kLongElement || kConfig.warpgroups == 3 ? 1 : 4;
    shared::MaskWords bits = {{0, 0}};
#pragma unroll 1
    for (int i = 0; i < (kN + 31) / 32; ++i) {
      const int kv_first = at.kv_first + 32 * i;
      const MaskColumns<32> columns(mod, uniform, at.batch, at.head, kv_first);
#pragma unroll kAtOnce
      for (int j = 0; j < 4; ++j) {
        unsigned two[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int kv_idx = kv_first + 2 * (threadIdx.x & 3) + 8 * j + e;
          const MaskColumn column = columns.at(j, e);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (mask_element(mod, uniform, rows[r], column, at.batch, at.head, at.q_idx + 8 * r, kv_idx)) {
              two[r] |= 1U << shared::mask_bit(0, e);
            }
          }
        }
        for (int r = 0; r < 2; ++r) bits.row[r] |= two[r] << shared::mask_bit(4 * i + j, 0);
      }
    }
    return bits;
  }

  shared::MaskWords bits_;  // of the block
  bool knows_ = false;      // what follows is this tile's
  bool alike_ = false;      // the warp's rows have the same values: row_
  MaskRow row_;
  int least_ = 0, most_ = 0;   // distances that attend
  int repeats_to_ = kNowhere;  // the bits are those of the tile's blocks up to this first key, too
};

}  // namespace heddle
