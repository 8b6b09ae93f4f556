// Where the buffers and barriers of a CTA of a pair lie, by the one layout of
// families/backward_sm90/shared/backward_wide_memory.h.
#pragma once

#include "backward_sm90/backward_tile_record.cuh"
#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "ptx/cluster.cuh"
#include "ptx/shared_words.cuh"

namespace heddle {

template <auto kConfig>
struct WideMemory {
  static constexpr shared::BackwardWideMemory kLayout = shared::backward_wide_memory(kConfig);
  static constexpr unsigned kPanel = shared::kWidePanelBytes;
  static constexpr int kWarps = 4;  // of a warpgroup
  /// Warps that read a buffer of Q or dO, or the same one of the other CTA, which the same load fills.
  static constexpr int kReaders = 2 * kWarps * (kConfig.shared_loads ? shared::kPair : 1);

  ptx::Address base;

  __device__ __forceinline__ explicit WideMemory(const void* dynamic) : base(ptx::address_of(dynamic)) {}

  __device__ __forceinline__ ptx::Address keys() const { return base + kLayout.k; }
  __device__ __forceinline__ ptx::Address values() const { return base + kLayout.v; }
  __device__ __forceinline__ ptx::Address peer_keys() const { return base + kLayout.peer_k; }
  __device__ __forceinline__ ptx::Address queries(int slot) const {
    return base + kLayout.q + slot * (kConfig.qk_panels() * kPanel);
  }
  __device__ __forceinline__ ptx::Address d_o(int slot) const {
    return base + kLayout.d_o + slot * (kConfig.d_o_panels() * kPanel);
  }
  /// dS of the keys of the CTA of that rank.
  __device__ __forceinline__ ptx::Address d_s(int rank) const { return base + kLayout.d_s + rank * kPanel; }
  /// Factors of thread t of a warpgroup: 4 j to 4 j + 3 at 2048 j.
  __device__ __forceinline__ ptx::Address factors(int t) const { return base + kLayout.factors + 16 * t; }
  __device__ __forceinline__ ptx::Address bits(int t) const {
    return base + kLayout.factors + shared::kWideFactorBytes + 4 * t;
  }
  __device__ __forceinline__ ptx::Address draws(int t) const { return bits(t) + shared::kWideWordBytes; }
  __device__ __forceinline__ ptx::Address d_q(int piece) const {
    return base + kLayout.d_q + piece * (4 * shared::kWidePieceFloats);
  }
  __device__ __forceinline__ ptx::Address lse(int slot) const {
    return base + kLayout.rows + slot * shared::block_bytes(kConfig.lse_rest);
  }
  __device__ __forceinline__ ptx::Address delta(int slot) const { return lse(slot) + 4 * shared::kBlockNumbers; }
  // lse_rest.
  __device__ __forceinline__ ptx::Address low(int slot) const { return lse(slot) + 8 * shared::kBlockNumbers; }
  __device__ __forceinline__ int far_flag(int slot) const {
    return ptx::load_word(lse(slot) + 4 * shared::kFlagOffset);
  }
  __device__ __forceinline__ ptx::Address step(int slot) const {
    return base + kLayout.steps + slot * static_cast<int>(sizeof(shared::BackwardStep));
  }
  /// A word of the tile's record, or of a step's, by its offset.
  __device__ __forceinline__ int tile_word(unsigned offset) const {
    return ptx::load_word(base + kLayout.tile + offset);
  }
  __device__ __forceinline__ int step_word(int slot, unsigned offset) const {
    return ptx::load_word(step(slot) + offset);
  }

  // Barriers. "Full": written, by TMA or by warps; "empty": read by all that read it.
  __device__ __forceinline__ ptx::Address barrier(int index) const { return base + kLayout.barriers + 8 * index; }
  __device__ __forceinline__ ptx::Address k_full() const { return barrier(0); }
  __device__ __forceinline__ ptx::Address v_full() const { return barrier(1); }
  __device__ __forceinline__ ptx::Address peer_k_full() const { return barrier(2); }
  static constexpr int kQ = 3, kDo = kQ + 2 * kConfig.q_stages, kFactors = kDo + 2 * kConfig.d_o_stages,
                       kDs = kFactors + 2, kDq = kDs + 3;
  __device__ __forceinline__ ptx::Address q_full(int slot) const { return barrier(kQ + slot); }
  __device__ __forceinline__ ptx::Address q_empty(int slot) const { return barrier(kQ + kConfig.q_stages + slot); }
  __device__ __forceinline__ ptx::Address d_o_full(int slot) const { return barrier(kDo + slot); }
  __device__ __forceinline__ ptx::Address d_o_empty(int slot) const { return barrier(kDo + kConfig.d_o_stages + slot); }
  __device__ __forceinline__ ptx::Address factors_full() const { return barrier(kFactors); }
  __device__ __forceinline__ ptx::Address factors_empty() const { return barrier(kFactors + 1); }
  /// stored: this CTA's dS is stored. copied: the other CTA's dS has come. empty: neither CTA reads this one's dS any
  /// more, nor this CTA the other's.
  __device__ __forceinline__ ptx::Address d_s_stored() const { return barrier(kDs); }
  __device__ __forceinline__ ptx::Address d_s_copied() const { return barrier(kDs + 1); }
  __device__ __forceinline__ ptx::Address d_s_empty() const { return barrier(kDs + 2); }
  __device__ __forceinline__ ptx::Address d_q_full(int piece) const { return barrier(kDq + piece); }
  __device__ __forceinline__ ptx::Address d_q_empty(int piece) const {
    return barrier(kDq + shared::kWidePieces + piece);
  }

  /// By one thread, before the first cluster_barrier().
  __device__ __forceinline__ void initialise() const {
    ptx::barrier_init(k_full(), 1);
    ptx::barrier_init(v_full(), 1);
    ptx::barrier_init(peer_k_full(), 1);
    for (int slot = 0; slot < kConfig.q_stages; ++slot) {
      ptx::barrier_init(q_full(slot), 1);
      ptx::barrier_init(q_empty(slot), kReaders);
    }
    for (int slot = 0; slot < kConfig.d_o_stages; ++slot) {
      ptx::barrier_init(d_o_full(slot), 1);
      ptx::barrier_init(d_o_empty(slot), kReaders);
    }
    ptx::barrier_init(factors_full(), kWarps);
    ptx::barrier_init(factors_empty(), kWarps);
    ptx::barrier_init(d_s_stored(), kWarps);
    ptx::barrier_init(d_s_copied(), 1);
    ptx::barrier_init(d_s_empty(), shared::kPair * kWarps);
    for (int piece = 0; piece < shared::wide_pieces(kConfig); ++piece) {
      ptx::barrier_init(d_q_full(piece), kWarps);
      ptx::barrier_init(d_q_empty(piece), 1);
    }
    ptx::barrier_init_done();
  }

  /// By one thread: brings the record of the pair's tile. A number past the last tile makes a record that says so.
  __device__ __forceinline__ void fetch_tile(const shared::BackwardSm90Params& params, int number) const {
    const ptx::Address to = base + kLayout.tile;
    if constexpr (kConfig.device_lengths) {
      if (number >= *params.listed) {
        ptx::store_word(to + shared::kTileSteps, -1);
        return;
      }
    }
    store_tile_record<kConfig>(to, params, params.items[number]);
  }
};

}  // namespace heddle
