// All that a consumer holds and reads: its kernel's constants, the tile's record, the buffers that come and are given
// back, and its registers. Their order here decides the generated code.
#pragma once

#include "forward_sm90/memory.cuh"
#include "fragments/consumer_weights.cuh"
#include "fragments/drop_weights.cuh"
#include "fragments/found_mask_bits.cuh"
#include "fragments/granule_positions.cuh"
#include "fragments/row_stores.cuh"
#include "fragments/scores.cuh"
#include "fragments/tile_rows.cuh"
#include "ptx/tma.cuh"

namespace heddle {

template <auto kConfig, class Params>
class ConsumerTile : protected DropsOf<kConfig.dropped> {
 protected:
  static constexpr int kQk = kConfig.qk_columns(), kV = kConfig.v_columns(), kN = kConfig.kv_block;
  using Memory = SharedMemory<kConfig>;
  // Measured: 2 to 3 % at D 64 without a mask in f16; in bf16, with a mask, and at D 128, nothing. It takes NVRTC 0.4 s.
  // (8 bits: not measured.)
  static constexpr bool kAsArray = (kConfig.f16 || kConfig.fp8()) && kQk <= 64 && kV <= 64 &&
                                   kConfig.warpgroups == 3 && !kConfig.masked && !kConfig.capped && !kConfig.dropped &&
                                   kConfig.scores == ScoreForm::plain && kConfig.key_numbers() == 0;
  static constexpr bool kSoftmax = kConfig.normalizer == Normalizer::softmax;
  static_assert(kSoftmax || (!kConfig.lse && !kConfig.sinks && !kConfig.max_scores));
  static_assert(kConfig.normalizer != Normalizer::none || !kConfig.capped);  // its t is in powers of two
  /// The scores are t when their exponentials are taken.
  static constexpr bool kMapped = kConfig.scores == ScoreForm::added || kConfig.scores == ScoreForm::mapped;
  static constexpr bool kMaskedByBits = kConfig.masked && kConfig.mask != shared::MaskForm::direct;
  using Bits = MaskBits<kConfig, kMaskedByBits>;
  static constexpr bool kHoles = kSoftmax && Bits::kRemembers;
  // If a mask leaves few keys of a tile's first block, their sum gives a limit that later weights soon exceed.
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
  // A safe tile's scores have one unit: powers of two if steps could differ; natural with lse_rest.
  static constexpr bool kFoldsSafely = heddle::kFoldsSafely<kConfig>, kNatural = kNaturalSafely<kConfig>;
  using Step = shared::Step;
  using BufferRing = ptx::ChooseRing<kConfig.fp8()>;

 public:
  __device__ __forceinline__ ConsumerTile(const Memory& memory, const ptx::TensorMap& o_map, const Params& params,
                                          int warpgroup)
      : memory_(memory), o_map_(o_map), params_(params), warpgroup_(warpgroup) {}

 protected:
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
  /// Like sequence(), but a sequence without queries if this warp's rows belong to no head.
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

  __device__ __forceinline__ void release(ptx::Address empty) const { ptx::barrier_arrive_by_warp(empty); }

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

  /// The first key of a step, as mods count keys.
  __device__ __forceinline__ int key_position(Step step) const {
    const int key = (step >> shared::kStepFlagBits) * kN;
    if constexpr (!kConfig.placed_keys) return key;
    const TileOrigin at = own_origin(tile_);
    return position_of_key(params_.mod, at.batch, at.head, key);
  }
  /// Where this warpgroup's scores of a step lie.
  __device__ __forceinline__ BlockOrigin block_origin(Step step) const {
    const TileOrigin at = own_origin(tile_);
    if constexpr (kConfig.placed_queries) {
      const int own = query_of_thread<kConfig>(warpgroup_), first = own & ~63;
      return {at.batch, at.head, position_of_query(params_.mod, at.batch, at.head, at.q_first + first) + own - first,
              key_position(step)};
    }
    if constexpr (kConfig.placed_keys) {
      return {at.batch, at.head, at.q_first + query_of_thread<kConfig>(warpgroup_) + q_start(tile_),
              key_position(step)};
    }
    return {at.batch, at.head, at.q_first + query_of_thread<kConfig>(warpgroup_) + q_start(tile_),
            (step >> shared::kStepFlagBits) * kN};
  }

  __device__ __forceinline__ static bool is_safe(Step step) { return kConfig.max_scores || (step & shared::kStepSafe); }
  __device__ __forceinline__ static float term_unit(Step step) {
    return kNatural && is_safe(step) ? 1.0F : t_unit(kConfig.normalizer);
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
