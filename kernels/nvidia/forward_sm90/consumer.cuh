// A consumer: one warpgroup, through all blocks of all tiles. Of each tile it owns 64 rows, from their first scores to
// their o. The class is in three headers: consumer_tile.cuh has its state and its reads of the tile, consumer_rows.cuh
// the end of rows that have seen all keys.
//
// Keep what reads its members as member functions: free functions that take several of them, or an object that holds
// references to them, change the generated code of unmasked kernels (measured).
#pragma once

#include "forward_sm90/consumer_rows.cuh"
#include "forward_sm90/products.cuh"
#include "fragments/cap.cuh"
#include "fragments/distances.cuh"
#include "fragments/empty_rows.cuh"
#include "fragments/key_columns.cuh"
#include "fragments/scores.cuh"
#include "fragments/tilt.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace heddle {

/// `Params`: the kernel's parameters, with tensors, mod, scale, scale_log2, cap, flat, mask_repeats_to, mask_words,
/// outputs, max_scores, lse_rest and natural.
template <auto kConfig, class Params>
class Consumer : ConsumerRows<kConfig, Params> {
  using Tile = ConsumerTile<kConfig, Params>;
  using Rows = ConsumerRows<kConfig, Params>;
  using Rows::settle, Rows::close_rows, Rows::store_tile;
  using Tile::kN, Tile::kMapped, Tile::kMaskedByBits, Tile::kHoles, Tile::kLimitsEachStep, Tile::kStreams, Tile::kKeyed,
      Tile::kTermsAlone, Tile::kHoldsRows, Tile::kFoldsSafely, Tile::kNatural, typename Tile::Step, Tile::memory_,
      Tile::o_map_, Tile::params_, Tile::warpgroup_, Tile::tile_, Tile::q_, Tile::begun_, Tile::k_, Tile::v_,
      Tile::key_slot_, Tile::row_terms_, Tile::streamed_, Tile::softmax_, Tile::mask_, Tile::s_, Tile::p_, Tile::o_,
      typename Tile::BufferRing, Tile::kv_len, Tile::own_origin, Tile::own_sequence, Tile::own_sink, Tile::release,
      Tile::is_safe, Tile::term_unit, Tile::factor, Tile::cap_limit, Tile::wait_for_keys, Tile::read_step,
      Tile::wait_for_queries, Tile::release_keys, Tile::release_values, Tile::wait_for_streamed, Tile::release_streamed,
      Tile::block_origin, Tile::key_position;

 public:
  using Rows::Rows;

  __device__ __forceinline__ void run() {
    for (;;) {
      wait_for_keys();
      Step step = read_step();
      if (step & shared::kStepStop) break;
      if (attends(step)) {
        step = stretch(step);
      } else {
        pass(step);
      }
      if (step & shared::kStepLast) finish_tile();
      if (step & shared::kStepListEnd) release(memory_.list_done());
    }
    if ((threadIdx.x & (kConfig.packs() ? 31 : 127)) == 0) ptx::tma_store_wait_read();  // who may have stored
  }

 private:
  __device__ __forceinline__ bool attends(Step step) const {
    return (step & (shared::kStepAttends << warpgroup_)) != 0;
  }

  /// Computes a stretch of blocks that this warpgroup attends. The first has arrived; the stretch ends with the list,
  /// or before a block that the warpgroup does not attend. Returns the last step.
  __device__ __forceinline__ Step stretch(Step step) {
    int accumulate = begun_ ? 1 : 0;
    begin_stretch(step);
    while (!(step & shared::kStepListEnd)) {
      wait_for_keys();
      if ((step & shared::kStepNextUneven) && !attends(read_step())) break;
      const bool new_tile = (step & shared::kStepLast) != 0;
      if (new_tile) {
        leave_table();
        ++tile_;
        wait_for_queries();
      }
      [[maybe_unused]] const int mask_words_at = this->mask_words_at();
      issue_qk<kConfig>(s_, q_, memory_.keys(ptx::slot_of(k_)));
      step = read_step();
      if constexpr (kConfig.stores_mask()) load_mask(mask_words_at, step);
      ptx::barrier_wait(memory_.v_full(ptx::slot_of(v_)), ptx::parity_of(v_));
      issue_pv<kConfig>(o_, p_, memory_.values(ptx::slot_of(v_)), accumulate);
      // These belong to the rows before this step: the factor of the finished o, or m.
      float carried[2] = {softmax_.rows.m[0], softmax_.rows.m[1]};
      if (new_tile) {
        close_rows(tile_ - 1, carried);
      } else if (kLimitsEachStep || softmax_.exact) {
        softmax_.set_limit();
      }
      expect_scores(step, new_tile);
      ptx::wgmma_wait<1>();
      ptx::touch(s_);
      release_keys(step);
      attend(step, new_tile);
      const bool moves = softmax_.moves(carried);
      softmax_.pin(memory_.q_full(0, 0));
      ptx::wgmma_wait<0>();
      ptx::touch(o_);
      release_values();
      if (new_tile) {
        store_tile(tile_ - 1, carried);
        accumulate = 0;
      } else {
        accumulate = 1;
        if (moves) settle(carried);
      }
      pack_p(step);
    }
    ptx::barrier_wait(memory_.v_full(ptx::slot_of(v_)), ptx::parity_of(v_));
    issue_pv<kConfig>(o_, p_, memory_.values(ptx::slot_of(v_)), accumulate);
    ptx::wgmma_wait<0>();
    ptx::touch(o_);
    release_values();
    return step;
  }

  /// S and P of a block that nothing runs beside.
  __device__ __forceinline__ void begin_stretch(Step step) {
    const bool new_tile = !begun_;
    if (new_tile) wait_for_queries();
    issue_qk<kConfig>(s_, q_, memory_.keys(ptx::slot_of(k_)));
    if constexpr (kConfig.stores_mask()) load_mask(mask_words_at(), step);
    const float before[2] = {softmax_.rows.m[0], softmax_.rows.m[1]};
    if (begun_ && (kLimitsEachStep || softmax_.exact)) softmax_.set_limit();
    expect_scores(step, new_tile);
    ptx::wgmma_wait<0>();
    ptx::touch(s_);
    release_keys(step);
    attend(step, new_tile);
    if (begun_ && softmax_.moves(before)) settle(before);
    pack_p(step);
    begun_ = true;
  }

  /// Passes over the key block that has arrived and its values.
  __device__ __forceinline__ void pass(Step step) {
    if ((step & shared::kStepLast) && !begun_) wait_for_queries();
    release_keys(step);
    if constexpr (kStreams) {
      for (int part = 0; part < kConfig.streamed_parts; ++part) {
        wait_for_streamed();
        release_streamed();
      }
    }
    // Called after the values have come: a buffer is given back once for each time that it was filled.
    ptx::barrier_wait(memory_.v_full(ptx::slot_of(v_)), ptx::parity_of(v_));
    release_values();
    advance_key_numbers();
  }

  /// The rows' last step, attended or not, lies behind.
  __device__ __forceinline__ void finish_tile() {
    if (begun_) {
      float factor[2];
      close_rows(tile_, factor);
      store_tile(tile_, factor);
    } else if constexpr (kConfig.device_lengths) {
      // Else the host has listed such rows.
      float lse = -ptx::infinity();
      if constexpr (kConfig.sinks) lse = lse_of_sink(own_sink(tile_));
      fill_own_rows<kConfig>(params_.outputs, params_.max_scores, params_.lse_rest, own_origin(tile_),
                             own_sequence(tile_), warpgroup_, lse);
    }
    begun_ = false;
    leave_table();
    ++tile_;
  }

  /// This tile's table is read no more.
  __device__ __forceinline__ void leave_table() const {
    if constexpr (kConfig.table_entries > 0) release(memory_.table_empty(tile_));
  }
  /// Flags of the block's terms; one value for the warp, and the compiler knows it.
  __device__ __forceinline__ int key_flags() const {
    if constexpr (!kConfig.key_term) return 0;
    return __shfl_sync(~0U, heddle::key_flags(memory_.key_flags(key_slot_)), 0);
  }
  __device__ __forceinline__ KeyColumns<kConfig> key_columns(float factor, bool natural) const {
    return {memory_.key_numbers(key_slot_), memory_.table(tile_),
            kNatural && natural ? params_.scale : params_.scale_log2, factor};
  }
  __device__ __forceinline__ void advance_key_numbers() {
    if constexpr (kKeyed) {
      if (++key_slot_ == shared::key_slots(kConfig)) key_slot_ = 0;
    }
  }

  /// Stored masks: where the words of the tile's key block 0 would stand. Read early, so that the load of a block's own
  /// waits for nothing but its number.
  __device__ __forceinline__ int mask_words_at() const {
    if constexpr (!kConfig.stores_mask()) return 0;
    return ptx::load_word(memory_.mask_words_at(tile_));
  }
  /// Has the words of a step's block loaded, where the mask decides of this warpgroup's rows.
  __device__ __forceinline__ void load_mask(int words_at, Step step) {
    const int thread = static_cast<int>(threadIdx.x & 127);
    mask_.load(params_.mask_words.words + shared::stored_word(words_at + (step >> shared::kStepFlagBits),
                                                              kConfig.warpgroups, warpgroup_, thread),
               (step & (shared::kStepPartial << warpgroup_)) != 0);
  }

  /// Prepares a block's terms and mask bits while the product of its scores runs.
  __device__ __forceinline__ void expect_scores(Step step, bool new_tile) {
    if constexpr (kConfig.dropped) {
      if (new_tile) this->drops.begin_tile(params_.mod, block_origin(step));
    }
    if constexpr (kMaskedByBits && !kConfig.stores_mask()) {
      if (new_tile) mask_.begin_tile();
      if ((step & (shared::kStepPartial << warpgroup_)) && !mask_.has(key_position(step))) {
        mask_.find(params_.mod, params_.mask_repeats_to, block_origin(step));
      }
    }
    if constexpr (kConfig.scores == ScoreForm::distant) {
      tabulate_distances<kConfig>(memory_.distances(warpgroup_), params_.mod, params_.flat, block_origin(step),
                                  warpgroup_, new_tile, softmax_.tilt, term_unit(step));
    } else if constexpr (kHoldsRows) {
      if (new_tile) {
        const BlockOrigin at = block_origin(step);
        softmax_.tilt.begin_tile(params_.mod, at);
        softmax_.tilt.set(params_.mod, at, term_unit(step));
        for (int r = 0; r < 2; ++r) row_terms_[r] = softmax_.tilt.base[r];
      }
      for (int r = 0; r < 2; ++r) softmax_.tilt.base[r] = row_terms_[r];
    } else if constexpr (ScoreTilt<kConfig.scores>::kAny) {
      const BlockOrigin at = block_origin(step);
      if (new_tile) softmax_.tilt.begin_tile(params_.mod, at);
      softmax_.tilt.set(params_.mod, at, term_unit(step));
      for (float& base : softmax_.tilt.base) asm volatile("" : "+f"(base));
    }
  }

  /// Flags of a step that has elements which do not attend, or may have.
  __device__ __forceinline__ int decided() const {
    return shared::kStepRagged | (kConfig.masked ? shared::kStepPartial << warpgroup_ : 0);
  }

  /// Maps the scores of a block by the mod. Streamed tiles of its captures are waited for and given back.
  __device__ __forceinline__ void map_block(Step step, float factor) {
    if constexpr (kStreams) wait_for_streamed();
    map_scores<kConfig>(s_, params_.mod, params_.scale * factor, block_origin(step),
                        memory_.streamed(streamed_.slot, warpgroup_), [&] {
                          release_streamed();
                          wait_for_streamed();
                          return memory_.streamed(streamed_.slot, warpgroup_);
                        });
    if constexpr (kStreams) release_streamed();
  }

  /// A step of the softmax over scores that are so far from the cap that a series computes it.
  __device__ __forceinline__ void step_far_from_cap(float factor) {
    if constexpr (kConfig.fp8()) {  // a series in products, of which the factor makes scores
      const float square = factor * factor;
      const float series[3] = {params_.cap.series[0] * factor, params_.cap.series[1] * (factor * square),
                               params_.cap.series[2] * (factor * square * square)};
      softmax_.step_capped(s_, series);
    } else {
      softmax_.step_capped(s_, params_.cap.series);
    }
  }

  /// Masks the scores of a partial block. Returns which of a thread's scores attend, where the softmax skips the others
  /// instead: they are not -inf then.
  __device__ __forceinline__ unsigned mask_block(Step step) {
    if constexpr (kHoles) {
      if (!softmax_.exact && mask_.repeats_two()) return mask_.first_two();
      mask_.apply(s_);
    } else if constexpr (kMaskedByBits) {
      mask_.apply(s_);
    } else {
      mask_scores<kConfig>(s_, params_.mod, block_origin(step));
    }
    return kAllAttend;
  }

  /// Mods and softmax of the S that has arrived.
  __device__ __forceinline__ void attend(Step step, bool new_tile) {
    const int kv_first = (step >> shared::kStepFlagBits) * kN;
    const float factor = this->factor();
    const bool natural = kNatural && is_safe(step);  // terms and scores are, not powers of two
    float scale_log2 = kMapped ? t_unit(kConfig.normalizer) : params_.scale_log2 * factor;
    if (kNatural && natural) scale_log2 = params_.scale * factor;
    if constexpr (kMapped) map_block(step, factor);
    const int flags = this->key_flags();
    if (new_tile) {
      softmax_.rows = RowSums();
      softmax_.safe = is_safe(step);
    }
    const bool keyed = kKeyed && (!kTermsAlone || (flags & shared::kKeyTermsAdd));  // else all terms are 0
    if constexpr (kKeyed && kConfig.scores == ScoreForm::distant) {
      if (keyed) {
        key_columns(factor, natural).fold(s_);
        scale_log2 = 1;
      }
    }
    if constexpr (kConfig.scores == ScoreForm::distant) {
      if (!softmax_.tilt.flat) {
        add_distances<kConfig>(memory_.distances(warpgroup_), s_, scale_log2);
        scale_log2 = 1;
      }
    }
    softmax_.begin_step((flags & shared::kKeyTermsRise) != 0);
    if constexpr (kConfig.capped) {
      if (!softmax_.exact && !(step & decided()) && are_far_from_cap<kConfig>(s_, cap_limit(factor))) {
        step_far_from_cap(factor);
        return;
      }
      cap_scores<kConfig>(s_, params_.cap, factor);
      scale_log2 = 1;
    }
    if constexpr (kKeyed && kConfig.scores != ScoreForm::distant) {
      if (keyed) {
        KeyColumns<kConfig> columns = key_columns(factor, natural);
        if (!softmax_.exact && !(step & decided())) {
          softmax_.step_keyed(s_, columns);
          advance_key_numbers();
          return;
        }
        columns.fold(s_);
        scale_log2 = 1;
      }
    }
    advance_key_numbers();
    const bool folds = (step & decided()) != 0 || (kFoldsSafely && softmax_.safe);
    if constexpr (ScoreTilt<kConfig.scores>::kAny) {
      if (folds) {
        softmax_.tilt.fold(s_, scale_log2);
        scale_log2 = 1;
      }
    } else if constexpr ((kConfig.fp8() && !kMapped && !kConfig.capped) || kKeyed) {
      // A factor of 8 bits that is not positive would make more of -inf.
      if (kConfig.fp8() ? folds : softmax_.safe) {
#pragma unroll
        for (float& x : s_) x *= scale_log2;
        scale_log2 = 1;
      }
    }
    if (kNatural && natural) scale_log2 = ptx::kLog2E;
    if (step & shared::kStepRagged) cut_scores<kConfig>(s_, kv_len(tile_) - kv_first);
    unsigned attending = kAllAttend;
    if constexpr (kConfig.masked) {
      if (step & (shared::kStepPartial << warpgroup_)) attending = mask_block(step);
    }
    if constexpr (kHoles) {
      softmax_.step(s_, scale_log2, attending);
    } else {
      softmax_.step(s_, scale_log2);
    }
  }

  /// P, in the storage type, of the block of `step`.
  __device__ __forceinline__ void pack_p(Step step) {
    if constexpr (kConfig.weighted) {
      weigh_scores<kConfig>(s_, params_.mod, block_origin(step), (step & decided()) != 0);
    }
    if constexpr (kConfig.fp8()) {
      constexpr bool kE5m2 = kConfig.q_fp8 == shared::Fp8::e5m2;
#pragma unroll
      for (int i = 0; i < kN / 8; ++i) {  // a row and 16 keys of a k-step, as transposed_values.h says
        const int at = 8 * (i / 2) + 2 * (i % 2);
        p_[i] = ptx::pack<kE5m2>(s_[at], s_[at + 1], s_[at + 4], s_[at + 5]);
      }
    } else if constexpr (kConfig.dropped) {
      draw<kN>(p_, this->drops, block_origin(step));
      pack_kept<kConfig>(p_, s_, this->drops);
    } else {
#pragma unroll
      for (int i = 0; i < kN / 4; ++i) p_[i] = ptx::pack<kConfig.f16>(s_[2 * i], s_[2 * i + 1]);
    }
  }
};

}  // namespace heddle
