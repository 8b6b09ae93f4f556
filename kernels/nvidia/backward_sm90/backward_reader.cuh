// A consumer of the pass that sums gradients of captures and params: one warpgroup, 64 keys of a tile, through all of
// its steps. It computes S^T and dP^T of its keys as the backward's consumer does, and dt in f32. For each read it
// computes the gradients of all pairs and adds them as the read's kind says
// (families/backward_sm90/shared/backward_reads_params.h).
//
// The generated source defines the reads: classes with kNumber, kSum, kAxes, kKind, kOfWeight, Slope, slope(), index().
#pragma once

#include "backward_sm90/backward_products.cuh"
#include "backward_sm90/backward_role.cuh"
#include "backward_sm90/read_index.cuh"
#include "families/backward_sm90/shared/backward_reads_params.h"
#include "fragments/lane_reductions.cuh"
#include "fragments/output_elements.cuh"

namespace heddle {

using shared::ReadKind;

template <auto kConfig, class... Reads>
class BackwardReader : public BackwardRole<kConfig> {
 public:
  using Base = BackwardRole<kConfig>;
  using Weights = typename Base::Weights;
  using Numbers = typename Base::Numbers;
  static constexpr bool kOfWeights = (Reads::kOfWeight || ...);
  /// Above all numbers of reads that visit pairs.
  static constexpr int kReads = [] {
    int above = 0;
    ((above = Reads::kNumber >= above ? Reads::kNumber + 1 : above), ...);
    return above;
  }();

  __device__ __forceinline__ BackwardReader(const BackwardMemory<kConfig>& memory,
                                            const shared::BackwardSm90Params& params,
                                            const shared::BackwardReadsParams& reads, int warpgroup)
      : Base(memory, params, warpgroup), reads_(reads) {}

  __device__ __forceinline__ void run() {
    ptx::barrier_wait(memory_.tile_full(0), 0);
    const int steps = __shfl_sync(~0U, this->word(shared::kTileSteps), 0);
    if (steps <= 0) return;
    this->ragged_keys_ = this->kv_first() + kConfig.keys() > this->word(shared::kTileKvLen);
    ptx::barrier_wait(memory_.k_full(), 0);
    ptx::barrier_wait(memory_.v_full(), 0);
    forget_sums();
    for (bool last = false; !last;) last = step();
    flush();
  }

 private:
  using Base::memory_;
  using Base::params_;
  using Base::s_;  // S
  using Base::warpgroup_;
  using Base::y_;  // dP, then dt

  /// Returns whether it was the tile's last.
  __device__ __forceinline__ bool step() {
    const int slot = slot_of(this->q_);
    ptx::barrier_wait(memory_.q_full(slot), parity_of(this->q_));
    const int flags = __shfl_sync(~0U, this->step_flags(), 0);
    ptx::forget(s_);
    ptx::forget(y_);
    issue_scores<kConfig>(s_, this->own_rows(memory_.keys()), memory_.queries(slot));
    const int d_o_slot = slot_of(this->d_o_);
    ptx::barrier_wait(memory_.d_o_full(d_o_slot), parity_of(this->d_o_));
    issue_scores<kConfig>(y_, this->own_rows(memory_.values()), memory_.d_o(d_o_slot));
    this->q_.advance(kConfig.q_stages);
    this->d_o_.advance(kConfig.d_o_stages);
    const TransposedOrigin at = this->origin(slot);
    const int block = memory_.step_word(slot, shared::kStepQFirst) / shared::kBlockRows,
              number = memory_.step_word(slot, shared::kStepBlock) / params_.q_heads;
    if (at.head != head_) {
      flush();
      head_ = at.head;
    }
    unsigned bits = this->attending(flags, slot);
    TransposedDrops drops{};
    if constexpr (kConfig.dropped) drops = draw_transposed(params_.mod, at);
    Numbers lse, deltas;
    lse.set(memory_.lse(slot) + this->lane_offset());
    deltas.set(memory_.delta(slot) + this->lane_offset());
    ptx::wgmma_wait<0>();
    ptx::touch(s_);
    ptx::touch(y_);
    if (kConfig.lse_rest && (flags & shared::kStepFar) != 0) {
      bits = Weights::template gradients<kConfig.lse_rest>(s_, y_, z_, bits, drops, params_, at, lse, deltas,
                                                           this->low(slot));
    } else {
      bits = Weights::template gradients<false>(s_, y_, z_, bits, drops, params_, at, lse, deltas, 0);
    }
    ptx::barrier_arrive_by_warp(memory_.q_empty(slot));
    ptx::barrier_arrive_by_warp(memory_.d_o_empty(d_o_slot));
    (add<Reads>(at, bits, block, number), ...);
    return (flags & shared::kStepLast) != 0;
  }

  /// The gradients of all pairs of the step.
  template <class Read>
  __device__ __forceinline__ void add(const TransposedOrigin& at, unsigned bits, int block, int number) {
    const shared::ModValues& mod = params_.mod;
    TransposedMod<typename Read::Slope> slope(mod, at);
    float of_queries[16], g[32];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int q_idx = at.query(j, e);
        slope.set_query(mod, at, q_idx);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int n = 4 * j + 2 * r + e;
          const float score = s_[n] * reads_.score_scale;
          const float factor =
              Read::slope(mod, slope.uniform, slope.row, slope.column[r], score, at.batch, at.head, q_idx, at.key(r));
          const bool attends = (bits >> n & 1) != 0;
          g[n] = attends ? (Read::kOfWeight ? z_[kOfWeights ? n : 0] : y_[n]) * factor : 0.0F;
          if constexpr (!shared::has_partials(Read::kKind)) {
            if (attends)
              bring<Read>(target_of<Read>(mod, sum<Read>(), score, at.batch, at.head, q_idx, at.key(r)), g[n]);
          }
        }
        of_queries[2 * j + e] = g[4 * j + e] + g[4 * j + 2 + e];
        if constexpr (Read::kKind == ReadKind::columns) {
#pragma unroll
          for (int r = 0; r < 2; ++r) of_keys_[Read::kNumber][r] += g[4 * j + 2 * r + e];
        }
      }
    }
    if constexpr (Read::kKind == ReadKind::rows) add_rows<Read>(of_queries, number);
    if constexpr (Read::kKind == ReadKind::diagonals) add_diagonals<Read>(g, block);
  }

  template <class Read>
  __device__ __forceinline__ const shared::ReadSum& sum() const {
    return reads_.sums[Read::kSum];
  }

  /// One gradient to its place.
  template <class Read>
  __device__ __forceinline__ void bring(const ReadTarget& target, float g) const {
    if constexpr (Read::kKind == ReadKind::stored) {
      if (!target.inside) return;  // an `at` took its fill
      using Elements = OutputElements<kSumTypes[Read::kSum], kConfig.f16>;
      static_cast<typename Elements::One*>(sum<Read>().data)[target.offset] = Elements::first(Elements::pair(g, 0.0F));
    } else if constexpr (Read::kKind == ReadKind::owned) {
      if (target.inside) sum<Read>().floats[target.number] += g;
    } else {
      if (g != 0 && (target.inside || !Read::kSkipsOutside)) atomicAdd(sum<Read>().floats + target.number, g);
    }
  }

  // Sums of queries: over a warp's keys by its lanes, over the warps by threads in order.

  template <class Read>
  __device__ __forceinline__ void add_rows(float (&of_queries)[16], int number) {
    const unsigned thread = threadIdx.x & 127, lane = thread & 31;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        of_queries[i] += __shfl_xor_sync(~0U, of_queries[i], distance);
      }
    }
    ptx::named_barrier(1 + warpgroup_, 128);  // what stood there has been read
    if (lane < 4) {
#pragma unroll
      for (int i = 0; i < 16; ++i) put(64 * (thread / 32) + 8 * (i / 2) + 2 * lane + i % 2, of_queries[i]);
    }
    ptx::named_barrier(1 + warpgroup_, 128);
    if (thread >= shared::kBlockRows) return;
    float all = 0;
    for (unsigned warp = 0; warp < 4; ++warp) all += get(64 * warp + thread);
    const long long slot = shared::row_slot(number, params_.q_heads, head_, group(), reads_.groups, reads_.apart != 0);
    keep(reads_.partials[Read::kNumber] + slot * shared::kBlockRows + thread, all);
  }

  // Sums of distances: 64 keys and 64 queries have 127. Thread t has kv - q = t (from the tile's first ones on) and
  // t - 64; the next block adds to the latter as its t, so that sum waits for it.

  template <class Read>
  __device__ __forceinline__ void add_diagonals(const float (&g)[32], int block) {
    const unsigned thread = threadIdx.x & 127, lane = thread & 31;
    const unsigned key = 16 * (thread / 32) + lane / 4, query = 2 * (lane % 4);
    ptx::named_barrier(1 + warpgroup_, 128);
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      put((key + n / 2 % 2 * 8) * shared::kScratchRow + query + 8 * (n / 4) + n % 2, g[n]);
    }
    ptx::named_barrier(1 + warpgroup_, 128);
    if (thread >= shared::kBlockRows) return;
    float here = 0, next = 0;
#pragma unroll 8
    for (unsigned i = 0; i < 64; ++i) {
      const float x = get((i + thread) % 64 * shared::kScratchRow + i);
      here += i + thread < 64 ? x : 0.0F;
      next += i + thread < 64 ? 0.0F : x;
    }
    float& waiting = waiting_[Read::kNumber];
    int& waits_for = waits_for_[Read::kNumber];
    if (waits_for >= 0 && waits_for != block) {
      keep_diagonal<Read>(waits_for, waiting);
      waiting = 0;
    }
    keep_diagonal<Read>(block, waiting + here);
    waiting = next;
    waits_for = block + 1;
  }
  template <class Read>
  __device__ __forceinline__ void keep_diagonal(int block, float x) const {
    const int first = this->word(shared::kTileFirstBlock);
    const long long slot = shared::diagonal_slot(first, this->word(shared::kTileBatch), params_.q_heads, head_, block,
                                                 group(), reads_.groups, reads_.apart != 0);
    keep(reads_.partials[Read::kNumber] + slot * shared::kBlockRows + (threadIdx.x & 127), x);
  }

  /// A partial: of these keys alone, or added to others'. 64 keys past the end of the longest sequence have none.
  __device__ __forceinline__ void keep(float* to, float x) const {
    if (group() >= reads_.groups) return;
    if (reads_.apart != 0) {
      *to = x;
    } else {
      atomicAdd(to, x);
    }
  }
  /// The 64 keys among the sequence's.
  __device__ __forceinline__ int group() const {
    return this->word(shared::kTileKvTile) * kConfig.warpgroups + warpgroup_;
  }

  // Threads of the warpgroup show each other numbers through this memory.
  __device__ __forceinline__ void put(unsigned i, float x) const {
    ptx::store_word(memory_.scratch(warpgroup_) + 4 * i, __float_as_int(x));
  }
  __device__ __forceinline__ float get(unsigned i) const {
    return __int_as_float(ptx::load_word(memory_.scratch(warpgroup_) + 4 * i));
  }

  __device__ __forceinline__ void forget_sums() {
    head_ = -1;
    for (int i = 0; i < kReads; ++i) {
      of_keys_[i][0] = of_keys_[i][1] = waiting_[i] = 0;
      waits_for_[i] = -1;
    }
  }
  /// Stores the sums of a query head.
  __device__ __forceinline__ void flush() {
    if (head_ < 0) return;
    (flush_read<Reads>(), ...);
    const int head = head_;
    forget_sums();
    head_ = head;
  }
  template <class Read>
  __device__ __forceinline__ void flush_read() {
    if constexpr (Read::kKind == ReadKind::columns) flush_keys<Read>();
    if constexpr (Read::kKind == ReadKind::diagonals) {
      if (waits_for_[Read::kNumber] >= 0) keep_diagonal<Read>(waits_for_[Read::kNumber], waiting_[Read::kNumber]);
    }
  }
  template <class Read>
  __device__ __forceinline__ void flush_keys() {
    const long long before = reads_.packed != 0
                                 ? this->word(shared::kTileKvBegin)
                                 : static_cast<long long>(this->word(shared::kTileBatch)) * reads_.kv_rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = quad_sum(of_keys_[Read::kNumber][r]);
      const int key = this->kv_first() + this->own_key() + 8 * r;
      if ((threadIdx.x & 3) != 0 || key >= this->word(shared::kTileKvLen)) continue;
      reads_.partials[Read::kNumber][head_ * reads_.all_keys + before + key] = x;
    }
  }

  const shared::BackwardReadsParams& reads_;
  int head_;                      // of the sums below
  float z_[kOfWeights ? 32 : 1];  // p dP
  float of_keys_[kReads][2];      // of the thread's keys
  float waiting_[kReads];         // distances of the next block
  int waits_for_[kReads];         // that block; below 0: none
};

}  // namespace heddle
