// A consumer: one warpgroup, through all blocks of all tiles. Of each tile it owns 64 rows, from their first scores to
// their o.
//
// Keep what reads its members as member functions: free functions that take several of them, or an object that holds
// references to them, change the generated code of unmasked kernels (measured).
#pragma once

#include "fragments/cap.cuh"
#include "fragments/distances.cuh"
#include "fragments/drops.cuh"
#include "fragments/empty_rows.cuh"
#include "fragments/key_columns.cuh"
#include "fragments/mask_bits.cuh"
#include "fragments/row_weights.cuh"
#include "fragments/scores.cuh"
#include "fragments/sink.cuh"
#include "fragments/stored_rows.cuh"
#include "fragments/tile_rows.cuh"
#include "fragments/tilt.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "forward_sm90/memory.cuh"
#include "forward_sm90/output.cuh"
#include "forward_sm90/products.cuh"

namespace heddle {

/// `Params`: the kernel's parameters, with tensors, mod, scale, scale_log2, cap, flat, mask_repeats_to, mask_words,
/// outputs, max_scores, lse_rest and natural.
template <auto kConfig, class Params>
class Consumer : DropsOf<kConfig.dropped> {
 public:
  static constexpr int kQk = kConfig.qk_columns(), kV = kConfig.v_columns(), kN = kConfig.kv_block;
  using Memory = SharedMemory<kConfig>;
  // Measured: 4 % at D 64 without a mask; with one, and at D 128, nothing.
  static constexpr bool kAsArray = kQk <= 64 && kV <= 64 && kConfig.warpgroups == 3 && !kConfig.masked &&
                                   !kConfig.capped && !kConfig.dropped && kConfig.scores == ScoreForm::plain &&
                                   kConfig.key_numbers() == 0;
  static constexpr bool kSoftmax = kConfig.normalizer == Normalizer::softmax;
  static_assert(kSoftmax || (!kConfig.lse && !kConfig.sinks && !kConfig.max_scores));
  static_assert(kConfig.normalizer != Normalizer::none || !kConfig.capped);  // its t is in powers of two
  /// The scores are t when their exponentials are taken.
  static constexpr bool kMapped = kConfig.scores == ScoreForm::added || kConfig.scores == ScoreForm::mapped;
  static constexpr bool kMaskedByBits = kConfig.masked && kConfig.mask != shared::MaskForm::direct;
  using Bits = MaskBits<kConfig, kMaskedByBits>;
  static constexpr bool kHoles = kSoftmax && Bits::kRemembers;
  // Where a mask leaves few keys of a tile's first block, their sum makes a limit that later weights soon exceed.
  // (Dilations, 8 bits: registers too many; for dilations nothing gained either.)
  static constexpr bool kLimitsEachStep = kSoftmax && kMaskedByBits && !kHoles && !kConfig.fp8();
  static constexpr bool kStreams = kConfig.streamed_bytes > 0;
  /// Numbers of the keys make products t, in powers of two, but for the form's own terms.
  static constexpr bool kKeyed = kConfig.computes_keys();
  static constexpr bool kTermsAlone = kConfig.key_term && kConfig.key_numbers() == 1;
  /// A term of the row stays in registers for its tile, where S, P and O leave them: D 64, 192 x 128 has one too few.
  /// (Without numbers of keys it is read for each block.)
  static constexpr int kTileRegisters = kN / 2 + kN * kConfig.element_bytes() / 8 + kV / 2;
  static constexpr bool kHoldsRows =
      kKeyed && kConfig.scores == ScoreForm::shifted && kConfig.consumer_registers() - kTileRegisters >= 36;
  static_assert(!kKeyed || (!kMapped && !kConfig.capped));
  // In 8 bits: weights of the other normalizers leave P's range, packed draws are two to a register, and the streamer's
  // warp transposes values.
  static_assert(!kConfig.fp8() || (kSoftmax && !kConfig.dropped && !kStreams));
  static_assert(!kMaskedByBits || kN <= 128);  // two rows of a thread are two words
  // A table of distances is of a warpgroup's 64 queries of one head.
  static_assert(!kConfig.packs() || kConfig.queries() == 64 || kConfig.scores != ScoreForm::distant);
  using RowWeights = RowWeightsOf<kConfig, kAsArray, kHoles>;

  __device__ __forceinline__ Consumer(const Memory& memory, const ptx::TensorMap& o_map, const Params& params,
                                      int warpgroup)
      : memory_(memory), o_map_(o_map), params_(params), warpgroup_(warpgroup) {}

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
  using Step = shared::Step;
  using BufferRing = ptx::ChooseRing<kConfig.fp8()>;

  __device__ __forceinline__ void wait_for_keys() const {
    ptx::barrier_wait(memory_.k_full(ptx::slot_of(k_)), ptx::parity_of(k_));
  }
  /// The producer's word about the keys that have arrived.
  __device__ __forceinline__ Step read_step() const {
    // The lane that gives the buffer back reads, and passes the word on: a shuffled value is one for the warp, and the
    // compiler knows it. Else every address that follows is one of each thread's own.
    Step step = 0;
    asm volatile(
        "{\n"
        ".reg .pred first;\n"
        "setp.eq.u32 first, %2, 0;\n"
        "@first ld.shared.s32 %0, [%1];\n"
        "}"
        : "+r"(step)
        : "r"(memory_.step(ptx::slot_of(k_))), "r"(threadIdx.x & 31)
        : "memory");
    return __shfl_sync(~0U, step, 0);
  }

  __device__ __forceinline__ TileOrigin origin(unsigned tile) const {
    TileOrigin origin;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(origin.q_first), "=r"(origin.head), "=r"(origin.batch), "=r"(origin.item)
                 : "r"(memory_.origin(tile))
                 : "memory");
    return origin;
  }
  __device__ __forceinline__ int sequence_word(unsigned tile, unsigned offset) const {
    return ptx::load_word(memory_.sequence(tile) + offset);
  }
  /// The tile's sequence.
  __device__ __forceinline__ TileSequence sequence(unsigned tile) const {
    if constexpr (!kConfig.by_sequence) return {0, params_.tensors.q_len};
    return {sequence_word(tile, shared::kSequenceQBegin), sequence_word(tile, shared::kSequenceQLen)};
  }
  __device__ __forceinline__ int kv_len(unsigned tile) const {
    return kConfig.by_sequence ? sequence_word(tile, shared::kSequenceKvLen) : params_.tensors.kv_len;
  }
  __device__ __forceinline__ int q_start(unsigned tile) const {
    return kConfig.by_sequence ? sequence_word(tile, shared::kSequenceQStart) : params_.mod.q_start;
  }
  /// Packed: the tile's heads that are left, from the head of this warp's rows on. None: the warp stores nothing.
  __device__ __forceinline__ int heads_left(unsigned tile, const TileOrigin& at) const {
    return ptx::load_word(memory_.heads_end(tile)) - at.head - head_of_warp<kConfig>(warpgroup_);
  }
  /// Origin of this warp's rows.
  __device__ __forceinline__ TileOrigin own_origin(unsigned tile) const {
    TileOrigin at = origin(tile);
    // Rows that are no head's hold the queries of the last one.
    if constexpr (kConfig.packs()) at.head += head_of_warp<kConfig>(warpgroup_) + min(heads_left(tile, at) - 1, 0);
    return at;
  }
  /// As sequence(); where this warp's rows are no head's, one without queries.
  __device__ __forceinline__ TileSequence own_sequence(unsigned tile) const {
    TileSequence own = sequence(tile);
    if constexpr (kConfig.packs()) {
      if (heads_left(tile, origin(tile)) <= 0) own.q_len = 0;
    }
    return own;
  }

  /// 8 bits: of this warp's head.
  __device__ __forceinline__ ptx::Address own_factors(unsigned tile) const {
    return memory_.factors(tile) + static_cast<int>(sizeof(shared::HeadFactors)) * head_of_warp<kConfig>(warpgroup_);
  }
  __device__ __forceinline__ float own_sink(unsigned tile) const {
    return ptx::load_float(memory_.sink(tile) + 4 * head_of_warp<kConfig>(warpgroup_));
  }

  __device__ __forceinline__ void release(ptx::Address empty) const {
    __syncwarp();  // all its threads have read
    if ((threadIdx.x & 31) == 0) ptx::barrier_arrive(empty);
  }

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
    // Not before the values have come: a buffer is given back once each time it was filled.
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

  // A tile's queries stand in the buffer of its number.
  __device__ __forceinline__ int q_slot() const { return static_cast<int>(tile_ % kConfig.q_buffers); }
  __device__ __forceinline__ void wait_for_queries() {
    q_ = memory_.queries(q_slot(), warpgroup_) >> 4;
    ptx::barrier_wait(memory_.q_full(q_slot(), warpgroup_), (tile_ / kConfig.q_buffers) & 1);
  }

  __device__ __forceinline__ void release_keys(Step step) {
    release(memory_.k_empty(ptx::slot_of(k_)));
    // By every thread: that orders its reads of the tile's record, too, before the producer writes there again.
    if (step & shared::kStepLast) ptx::barrier_arrive(memory_.q_empty(q_slot(), warpgroup_));
    k_.advance(kConfig.stages);
  }
  __device__ __forceinline__ void release_values() {
    release(memory_.v_empty(ptx::slot_of(v_)));
    v_.advance(kConfig.stages);
  }

  __device__ __forceinline__ void wait_for_streamed() const {
    ptx::barrier_wait(memory_.streamed_full(streamed_.slot, warpgroup_), streamed_.parity);
  }
  __device__ __forceinline__ void release_streamed() {
    release(memory_.streamed_empty(streamed_.slot, warpgroup_));
    streamed_.advance(kConfig.streamed_stages);
  }

  /// Where this warpgroup's scores of a step lie.
  __device__ __forceinline__ BlockOrigin block_origin(Step step) const {
    const TileOrigin at = own_origin(tile_);
    return {at.batch, at.head, at.q_first + query_of_thread<kConfig>(warpgroup_) + q_start(tile_),
            (step >> shared::kStepFlagBits) * kN};
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

  /// Computes what is known of a block's scores before they come, while the product runs.
  __device__ __forceinline__ void expect_scores(Step step, bool new_tile) {
    if constexpr (kConfig.dropped) {
      if (new_tile) this->drops.begin_tile(params_.mod, block_origin(step));
    }
    if constexpr (kMaskedByBits && !kConfig.stores_mask()) {
      if (new_tile) mask_.begin_tile();
      if ((step & (shared::kStepPartial << warpgroup_)) && !mask_.has((step >> shared::kStepFlagBits) * kN)) {
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

  __device__ __forceinline__ static bool is_safe(Step step) { return kConfig.max_scores || (step & shared::kStepSafe); }
  __device__ __forceinline__ static float term_unit(Step step) {
    return kNatural && is_safe(step) ? 1.0F : t_unit(kConfig.normalizer);
  }

  /// Flags of a step that has elements which do not attend, or may have.
  __device__ __forceinline__ int decided() const {
    return shared::kStepRagged | (kConfig.masked ? shared::kStepPartial << warpgroup_ : 0);
  }

  /// Mods and softmax of the S that has arrived.
  __device__ __forceinline__ void attend(Step step, bool new_tile) {
    const int kv_first = (step >> shared::kStepFlagBits) * kN;
    const float factor = this->factor();
    const bool natural = kNatural && is_safe(step);  // terms and scores are, not powers of two
    float scale_log2 = kMapped ? t_unit(kConfig.normalizer) : params_.scale_log2 * factor;
    if (kNatural && natural) scale_log2 = params_.scale * factor;
    if constexpr (kMapped) {
      if constexpr (kStreams) wait_for_streamed();
      map_scores<kConfig>(s_, params_.mod, params_.scale * factor, block_origin(step),
                          memory_.streamed(streamed_.slot, warpgroup_), [&] {
                            release_streamed();
                            wait_for_streamed();
                            return memory_.streamed(streamed_.slot, warpgroup_);
                          });
      if constexpr (kStreams) release_streamed();
    }
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
        if constexpr (kConfig.fp8()) {  // a series in products, of which the factor makes scores
          const float square = factor * factor;
          const float series[3] = {params_.cap.series[0] * factor, params_.cap.series[1] * (factor * square),
                                   params_.cap.series[2] * (factor * square * square)};
          softmax_.step_capped(s_, series);
        } else {
          softmax_.step_capped(s_, params_.cap.series);
        }
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
      if (step & (shared::kStepPartial << warpgroup_)) {
        if constexpr (kHoles) {
          if (!softmax_.exact && mask_.repeats_two()) {
            attending = mask_.first_two();
          } else {
            mask_.apply(s_);
          }
        } else if constexpr (kMaskedByBits) {
          mask_.apply(s_);
        } else {
          mask_scores<kConfig>(s_, params_.mod, block_origin(step));
        }
      }
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

  /// P and O are brought to m. `before`: m before the step.
  __device__ __forceinline__ void settle(const float (&before)[2]) {
    float rescale[2];
    softmax_.settle(s_, before, rescale, softmax_.safe ? safe_unit() : 1.0F);
#pragma unroll
    for (int j = 0; j < kV / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[4 * j + e] *= rescale[e / 2];
    }
  }

  // A safe tile's scores have one unit: powers of two if steps could differ; natural with lse_rest.
  static constexpr bool kFoldsSafely = heddle::kFoldsSafely<kConfig>, kNatural = kNaturalSafely<kConfig>;
  /// A safe tile's maximum times this is in powers of two.
  __device__ __forceinline__ float safe_unit() const {
    if constexpr (kNatural) return ptx::kLog2E;
    if constexpr (!kSoftmax || kFoldsSafely || kConfig.capped) return 1;
    return kMapped ? ptx::kLog2E : params_.scale_log2;
  }
  /// A safe tile's maximum times this is natural.
  __device__ __forceinline__ float safe_natural_unit() const {
    if constexpr (kNatural) return 1;
    if constexpr (kFoldsSafely || kConfig.capped) return ptx::kLn2;
    return kMapped ? 1.0F : params_.scale;
  }
  /// A row's m in powers of two, as its sum knows it.
  __device__ __forceinline__ float power_of_row(int r) const {
    const float m = softmax_.rows.m[r];
    return softmax_.safe ? fmaf(m, safe_unit(), -RowWeights::kSafeHeadroom) : m;
  }
  __device__ __forceinline__ float lse_of_row(float m, float l) const {
    if (!softmax_.safe) return ptx::kLn2 * (m + ptx::log2_fast(l));
    // A term that in_units() kept finite. A sum that is NaN stays.
    if (kFoldsSafely && fabsf(m) == kLargestTerm) return fmaf(l, 0.0F, m);
    return fmaf(m, safe_natural_unit(), ptx::kLn2 * (ptx::log2_fast(l) - RowWeights::kSafeHeadroom));
  }
  __device__ __forceinline__ NaturalUnit natural_unit() const {
    return softmax_.safe ? NaturalUnit{safe_natural_unit(), 0, RowWeights::kSafeHeadroom}
                         : NaturalUnit{params_.natural[0], params_.natural[1], 0};
  }

  /// The rows of a tile have seen all their keys: `factor` is what O is to be multiplied by.
  __device__ __forceinline__ void close_rows(unsigned tile, float (&factor)[2]) {
    if constexpr (kSoftmax) {
      close_softmax(tile, factor);
    } else {
      for (int r = 0; r < 2; ++r) factor[r] = softmax_.factor(r);
      suspect_ = RowWeights::kOwnPowers && !softmax_.safe;
    }
    if constexpr (kConfig.dropped) {
      for (int r = 0; r < 2; ++r) factor[r] *= this->drops.factor();
    }
    if constexpr (kConfig.fp8()) {
      const float values = ptx::load_float(own_factors(tile) + shared::kFactorOfValues);
      factor[0] *= values;
      factor[1] *= values;
    }
  }

  /// 1 / l, and lse = m + ln l.
  __device__ __forceinline__ void close_softmax(unsigned tile, float (&factor)[2]) {
    const float l[2] = {ptx::row_sum(softmax_.rows.l[0]), ptx::row_sum(softmax_.rows.l[1])};
    factor[0] = l[0] > 0 ? ptx::reciprocal(l[0]) : l[0];  // NaN stays
    factor[1] = l[1] > 0 ? ptx::reciprocal(l[1]) : l[1];
    const TileOrigin at = own_origin(tile);
    suspect_ = !softmax_.safe && (kConfig.weighted || __any_sync(~0U, !((l[0] < kSuspicious) & (l[1] < kSuspicious))));
    if constexpr (kConfig.sinks && kConfig.lse_rest) {
      const float sink = own_sink(tile);
      const RowEndInTwo ends[2] = {end_with_sink_in_two(softmax_.rows.m[0], natural_unit(), l[0], sink),
                                   end_with_sink_in_two(softmax_.rows.m[1], natural_unit(), l[1], sink)};
      const float largest[2] = {ends[0].first.sunk ? kSuspicious : RowWeights::kLargestSum,
                                ends[1].first.sunk ? kSuspicious : RowWeights::kLargestSum};
      if (suspect_ && __any_sync(~0U, !((l[0] < largest[0]) & (l[1] < largest[1])))) repeat(tile);
      for (int r = 0; r < 2; ++r) factor[r] = ends[r].first.factor;
      store_own_lse(at, own_sequence(tile), threadIdx.x & 1 ? ends[1].first.lse : ends[0].first.lse);
      store_own_number(params_.lse_rest, at, own_sequence(tile), threadIdx.x & 1 ? ends[1].rest : ends[0].rest);
    } else if constexpr (kConfig.sinks) {
      const float sink = own_sink(tile);
      const RowEnd ends[2] = {end_with_sink(power_of_row(0), l[0], sink), end_with_sink(power_of_row(1), l[1], sink)};
      const float largest[2] = {ends[0].sunk ? kSuspicious : RowWeights::kLargestSum,
                                ends[1].sunk ? kSuspicious : RowWeights::kLargestSum};
      if (suspect_ && __any_sync(~0U, !((l[0] < largest[0]) & (l[1] < largest[1])))) repeat(tile);
      factor[0] = ends[0].factor;
      factor[1] = ends[1].factor;
      if constexpr (kConfig.lse) store_own_lse(at, own_sequence(tile), threadIdx.x & 1 ? ends[1].lse : ends[0].lse);
    } else {
      constexpr float kLargest = RowWeights::kLargestSum;
      if (suspect_ && __any_sync(~0U, !((l[0] < kLargest) & (l[1] < kLargest)))) repeat(tile);
      if constexpr (kConfig.lse) {
        // Where nothing attends m is -inf.
        const bool lower = threadIdx.x & 1;
        const float lse = lse_of_row(lower ? softmax_.rows.m[1] : softmax_.rows.m[0], lower ? l[1] : l[0]);
        store_own_lse(at, own_sequence(tile), lse);
        if constexpr (kConfig.lse_rest) {
          const float m = lower ? softmax_.rows.m[1] : softmax_.rows.m[0], sum = lower ? l[1] : l[0];
          store_own_number(params_.lse_rest, at, own_sequence(tile), rest_of_lse(m, natural_unit(), sum, lse));
        }
      }
    }
    if constexpr (kConfig.max_scores) {
      // The tile is safe; a sum that is NaN knows of scores that a maximum does not.
      const bool lower = threadIdx.x & 1;
      const float m = lower ? softmax_.rows.m[1] : softmax_.rows.m[0], sum = lower ? l[1] : l[0];
      const int own_row = own_row_of_pair(at);
      const TileSequence own = own_sequence(tile);
      if ((threadIdx.x & 2) == 0 && own_row < own.q_len) {
        store_number(params_.max_scores, at, own.q_begin + own_row, sum == sum ? m * safe_natural_unit() : sum);
      }
    }
  }

  /// If four threads share two rows, the first two store one each: the even ones the upper row's.
  __device__ __forceinline__ int own_row_of_pair(const TileOrigin& at) const {
    return at.q_first + query_of_thread<kConfig>(warpgroup_) + (threadIdx.x & 1 ? 8 : 0);
  }
  __device__ __forceinline__ void store_own_lse(const TileOrigin& at, const TileSequence& own, float lse) const {
    const int own_row = own_row_of_pair(at);
    if ((threadIdx.x & 2) == 0 && own_row < own.q_len) store_lse(params_.outputs, at, own.q_begin + own_row, lse);
  }

  __device__ __forceinline__ void store_own_number(const shared::RowNumbers& out, const TileOrigin& at,
                                                   const TileSequence& own, float x) const {
    const int own_row = own_row_of_pair(at);
    if ((threadIdx.x & 2) == 0 && own_row < own.q_len) store_number(out, at, own.q_begin + own_row, x);
  }

  /// o = O / l.
  __device__ __forceinline__ void store_tile(unsigned tile, const float (&factor)[2]) {
    const TileOrigin at = own_origin(tile);
    if (suspect_ && !__all_sync(~0U, finite_o())) repeat(tile);
    if constexpr (kConfig.stores_o_by_threads()) {
      store_output_by_threads<kConfig>(params_.outputs, warpgroup_, at, own_sequence(tile), o_, factor);
    } else {
      store_output<kConfig>(memory_, o_map_, warpgroup_, at, own_sequence(tile), params_.tensors.q_len, o_, factor);
    }
  }

  /// The factor that makes scores of products beside params_.scale: in 8 bits, this warp's head's. Read for each step:
  /// a register that held it would be one too many.
  __device__ __forceinline__ float factor() const {
    if constexpr (!kConfig.fp8()) return 1;
    return ptx::load_float(own_factors(tile_) + shared::kFactorOfScores);
  }

  /// The cap's limit for products.
  __device__ __forceinline__ float cap_limit(float factor) const {
    if constexpr (!kConfig.fp8()) return params_.cap.limit;
    return params_.cap.limit * ptx::reciprocal(fabsf(factor));
  }

  // From this sum of weights on, large values may have overflowed O though the sum itself has not; a weight_mod may
  // make any of them large.
  static constexpr float kSuspicious = 16777216.0F;

  __device__ __forceinline__ bool finite_o() const {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < kV / 2; ++i) zero = fmaf(o_[i], 0.0F, zero);
    return zero == 0;
  }

  /// The producer will bring that tile again, safely.
  __device__ __forceinline__ void repeat(unsigned tile) const {
    // Predicated, not a branch: lanes that part here would cost every address of the loop its one value a warp.
    asm volatile(
        "{\n"
        ".reg .pred first;\n"
        "setp.eq.u32 first, %2, 0;\n"
        "@first red.shared.or.b32 [%0], %1;\n"
        "}" ::"r"(memory_.redo(tile)),
        "r"(1), "r"(threadIdx.x & 31)
        : "memory");
  }

  const Memory& memory_;
  const ptx::TensorMap& o_map_;
  const Params& params_;
  int warpgroup_;
  unsigned tile_ = 0;     // number of the tile whose queries are in use
  unsigned q_ = 0;        // where these queries are, in units of 16 bytes
  bool begun_ = false;    // a stretch has ended inside that tile
  bool suspect_ = false;  // the closed tile's weights were large
  BufferRing k_{0}, v_{0};
  int key_slot_ = 0;
  float row_terms_[kHoldsRows ? 2 : 1];
  ptx::Ring streamed_{0};
  RowWeights softmax_;
  Bits mask_;
  float s_[kN / 2];                               // registers: S, then P, 64 x kv_block
  unsigned p_[kN * kConfig.element_bytes() / 8];  // registers: P in the storage type, as pv_product takes it
  float o_[kV / 2];                               // registers: O, 64 x v_columns
};

}  // namespace heddle
