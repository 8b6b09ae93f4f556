// Numbers of keys: parts of mods that depend on the key alone, or on the query alone. Warps of the producer's warpgroup
// that are idle else compute them once for each key of a block, beside the loading of the keys. The mods' functions are
// generated: keyfactor_..., keyterm_..., keyindex_..., queryindex_... and entry_... (device_text/expression_text.h).
#pragma once

#include "forward_sm90/memory.cuh"
#include "forward_sm90/tile_source.cuh"
#include "fragments/consumer_weights.cuh"
#include "fragments/granule_positions.cuh"
#include "fragments/tilt.cuh"
#include "ptx/math.cuh"
#include "ptx/shared_words.cuh"
#include "shared/mod_values.h"

namespace heddle {

template <auto kConfig>
class KeyNumbers {
 public:
  using Memory = SharedMemory<kConfig>;

  /// By all threads of warp number `warp` of those that compute numbers.
  __device__ __forceinline__ KeyNumbers(const Memory& memory, const shared::ModValues& mod, const float& scale_log2,
                                        const float& scale, unsigned warp)
      : memory_(memory), mod_(mod), scale_log2_(scale_log2), scale_(scale), warp_(static_cast<int>(warp)) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      ptx::barrier_wait(memory_.key_block_asked(k_.slot), k_.parity);
      const int asked = ptx::load_word(memory_.key_block(k_.slot));
      if (asked == shared::kNoKeyBlock) break;
      if (asked & 1) begin_tile();
      if constexpr (kConfig.placed_keys) {
        compute(position_of_key(mod_, batch_, head_, (asked >> 1) * kConfig.kv_block));
      } else {
        compute((asked >> 1) * kConfig.kv_block);
      }
      ptx::barrier_arrive_by_warp(memory_.k_full(k_.slot));
      k_.advance(kConfig.stages);
      if (++slot_ == shared::key_slots(kConfig)) slot_ = 0;
    }
  }

 private:
  static constexpr int kWarps = kConfig.key_warps() > 0 ? kConfig.key_warps() : 1, kNumbers = kConfig.key_numbers();
  static_assert(kConfig.table_entries == 0 || !kConfig.placed_queries);  // a table's rows are neighbours
  static constexpr float kUnit = t_unit(kConfig.normalizer);
  // In powers of two (normalizer none: not at all). Weights that are 2^64 times as large as a row's first ones leave
  // O's range; scores, too, may differ by some.
  static constexpr float kRise = 32;

  /// This thread's keys of the block: 32 a warp, of which the last may lie past its end. All are found before the first
  /// is stored, so that their reads do not wait for each other.
  static constexpr int kKeys = (kConfig.kv_block + 32 * kWarps - 1) / (32 * kWarps);
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x & 31); }

  __device__ __forceinline__ void begin_tile() {
    const ptx::Address origin = memory_.origin(tile_);
    head_ = ptx::load_word(origin + shared::kOriginHead);
    batch_ = ptx::load_word(origin + shared::kOriginBatch);
    highest_ = ptx::infinity();
    if constexpr (kNaturalSafely<kConfig>) {
      const bool safe = kConfig.max_scores || (ptx::load_word(origin + shared::kOriginItem) & kSafely) != 0;
      unit_ = safe ? 1.0F : kUnit;
      factor_ = safe ? scale_ : scale_log2_;
    }
    if constexpr (kConfig.table_entries > 0) {
      const int q_start =
          kConfig.by_sequence ? ptx::load_word(memory_.sequence(tile_) + shared::kSequenceQStart) : mod_.q_start;
      ptx::barrier_wait(memory_.table_empty(tile_), (tile_ / shared::kTables + 1) & 1);
      fill_table(memory_.table(tile_), q_start + ptx::load_word(origin));
    }
    ++tile_;
  }

  /// The rows' entries begin at addresses, so that a key's index is added to them.
  __device__ __forceinline__ void fill_table(ptx::Address table, int q_first) const {
    const QueryindexUniform of_indices = queryindex_uniform(mod_, batch_, head_);
    const ptx::Address entries = table + 4 * kConfig.rows();
#pragma unroll 1
    for (int i = threadIdx.x & (32 * kWarps - 1); i < kConfig.rows(); i += 32 * kWarps) {
      const int q_idx = q_first + (kConfig.packs() ? i % kConfig.queries() : i);
      const QueryindexRow row = queryindex_row(mod_, of_indices, batch_, head_, q_idx);
      const int at = queryindex_element(mod_, of_indices, row, {}, batch_, head_, q_idx, 0);
      ptx::store_word(table + 4 * i, static_cast<int>(entries) + 4 * at);
    }
    const EntryUniform of_entries = entry_uniform(mod_, batch_, head_);
#pragma unroll 4
    for (int i = threadIdx.x & (32 * kWarps - 1); i < kConfig.table_entries; i += 32 * kWarps) {
      const EntryColumn column = entry_column(mod_, of_entries, batch_, head_, i);
      const float entry = entry_element(mod_, of_entries, {}, column, batch_, head_, 0, i);
      if constexpr (kNaturalSafely<kConfig>) {
        ptx::store_float(entries + 4 * i, in_own_units(entry));
      } else {
        ptx::store_float(entries + 4 * i, in_units(entry));
      }
    }
  }

  /// A term in powers of two, or as it is.
  __device__ __forceinline__ static float in_units(float term) { return heddle::in_units(term, kUnit); }
  /// Likewise, of a tile whose terms may be natural.
  __device__ __forceinline__ float in_own_units(float term) const { return heddle::in_units(term, unit_); }

  __device__ __forceinline__ void compute(int kv_first) {
    if constexpr (kConfig.key_factor) {
      const KeyfactorUniform uniform = keyfactor_uniform(mod_, batch_, head_);
      float factors[kKeys];
      for_keys(kv_first, factors, [&](int kv_idx) {
        const KeyfactorColumn column = keyfactor_column(mod_, uniform, batch_, head_, kv_idx);
        const float& scale = kNaturalSafely<kConfig> ? factor_ : scale_log2_;
        return scale * keyfactor_element(mod_, uniform, {}, column, batch_, head_, 0, kv_idx);
      });
      store(factors, 0);
    }
    if constexpr (kConfig.key_term) {
      const KeytermUniform uniform = keyterm_uniform(mod_, batch_, head_);
      float terms[kKeys];
      for_keys(kv_first, terms, [&](int kv_idx) {
        const KeytermColumn column = keyterm_column(mod_, uniform, batch_, head_, kv_idx);
        const float term = keyterm_element(mod_, uniform, {}, column, batch_, head_, 0, kv_idx);
        if constexpr (kNaturalSafely<kConfig>) {
          return in_own_units(term);
        } else {
          return in_units(term);
        }
      });
      store(terms, kConfig.key_factor ? 1 : 0);
      say_flags(terms);
    }
    if constexpr (kConfig.table_entries > 0) {
      const KeyindexUniform uniform = keyindex_uniform(mod_, batch_, head_);
      float indices[kKeys];
      for_keys(kv_first, indices, [&](int kv_idx) {
        const KeyindexColumn column = keyindex_column(mod_, uniform, batch_, head_, kv_idx);
        return __int_as_float(4 * keyindex_element(mod_, uniform, {}, column, batch_, head_, 0, kv_idx));
      });
      store(indices, kNumbers - 1);
    }
  }

  template <class Number>
  __device__ __forceinline__ void for_keys(int kv_first, float (&numbers)[kKeys], Number&& number) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) numbers[i] = number(kv_first + key(i));
  }
  __device__ __forceinline__ int key(int i) const { return 32 * (kWarps * i + warp_) + lane(); }
  __device__ __forceinline__ void store(const float (&numbers)[kKeys], int at) const {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (key(i) < kConfig.kv_block) {
        ptx::store_float(memory_.key_numbers(slot_) + 4 * (kNumbers * key(i) + at), numbers[i]);
      }
    }
  }

  /// Whether consumers may pass over the block's terms; and whether some are far above those that rows may have taken
  /// their maximum from. (NaN adds, and is not above.)
  __device__ __forceinline__ void say_flags(const float (&terms)[kKeys]) {
    float highest = -ptx::infinity();
    bool adds = false;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (key(i) >= kConfig.kv_block) continue;
      highest = fmaxf(highest, terms[i]);
      adds |= !(terms[i] == 0);
    }
    adds = __any_sync(~0U, adds);
#pragma unroll
    for (int other = 16; other > 0; other /= 2) highest = fmaxf(highest, __shfl_xor_sync(~0U, highest, other));
    const bool rises = highest > highest_ + kRise, first = highest_ == ptx::infinity();
    if (rises || first) highest_ = highest;
    if (lane() == 0) {
      const int flags = (adds ? shared::kKeyTermsAdd : 0) | (rises ? shared::kKeyTermsRise : 0);
      ptx::store_word(memory_.key_flags(slot_) + 4 * warp_, flags);
      if constexpr (kWarps == 1) ptx::store_word(memory_.key_flags(slot_) + 4, 0);
    }
  }

  const Memory& memory_;
  const shared::ModValues& mod_;
  const float &scale_log2_, &scale_;  // in constant memory
  int warp_;
  ptx::Ring k_{0};
  int slot_ = 0;
  unsigned tile_ = 0;  // tiles begun
  int head_ = 0, batch_ = 0;
  // Term of this warp's keys in the tile's first block, and in one that rose; +inf: it has none yet.
  float highest_ = 0;
  float unit_ = kUnit, factor_ = 0;  // kNaturalSafely: of the tile
};

}  // namespace heddle
