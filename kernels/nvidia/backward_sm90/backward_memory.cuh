// Where the buffers and barriers of a CTA of backward_sm90 lie, by the one layout of backward_sm90_config.h.
#pragma once

#include "backward_sm90/backward_tile_record.cuh"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "ptx/barrier.cuh"
#include "ptx/shared_words.cuh"

namespace heddle {

template <auto kConfig>
struct BackwardMemory {
  static constexpr shared::BackwardSm90Memory kLayout = shared::backward_sm90_memory(kConfig);
  static constexpr unsigned kStepBytes = shared::tensor_bytes(kConfig, shared::kStepQueries);
  static constexpr unsigned kPanelBytes = shared::kStepQueries * 128;
  static constexpr int kWarps = 4 * kConfig.warpgroups;  // of consumers

  ptx::Address base;

  __device__ __forceinline__ explicit BackwardMemory(const void* dynamic) : base(ptx::address_of(dynamic)) {}

  static constexpr int kKeyBytes = shared::tensor_bytes(kConfig, kConfig.keys());
  __device__ __forceinline__ ptx::Address keys(int buffer = 0) const { return base + kLayout.k + buffer * kKeyBytes; }
  __device__ __forceinline__ ptx::Address values(int buffer = 0) const { return base + kLayout.v + buffer * kKeyBytes; }
  __device__ __forceinline__ ptx::Address queries(int slot) const { return base + kLayout.q + slot * kStepBytes; }
  __device__ __forceinline__ ptx::Address d_o(int slot) const { return base + kLayout.d_o + slot * kStepBytes; }
  __device__ __forceinline__ ptx::Address d_s(int buffer, int warpgroup) const {
    return base + kLayout.d_s + (buffer * kConfig.warpgroups + warpgroup) * kPanelBytes;
  }
  /// A part of dQ: that of a warpgroup, or of a step.
  __device__ __forceinline__ ptx::Address d_q(int buffer) const {
    return base + kLayout.d_q + buffer * (4 * kConfig.d_q_part_floats());
  }
  // queries_convert().
  __device__ __forceinline__ ptx::Address zeros() const { return base + kLayout.zeros; }
  __device__ __forceinline__ ptx::Address scratch(int warpgroup) const {
    return base + kLayout.scratch + warpgroup * (4 * kConfig.scratch_floats());
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
  __device__ __forceinline__ ptx::Address tile(int buffer) const {
    return base + kLayout.tile + buffer * static_cast<int>(sizeof(shared::BackwardTile));
  }
  __device__ __forceinline__ ptx::Address turn(int buffer) const {
    return base + kLayout.turn + buffer * static_cast<int>(sizeof(shared::DqTurn));
  }
  __device__ __forceinline__ int turn_word(int buffer, unsigned offset) const {
    return ptx::load_word(turn(buffer) + offset);
  }
  /// A word of a tile's record, by its offset.
  __device__ __forceinline__ int tile_word(int buffer, unsigned offset) const {
    return ptx::load_word(tile(buffer) + offset);
  }
  __device__ __forceinline__ int step_word(int slot, unsigned offset) const {
    return ptx::load_word(step(slot) + offset);
  }

  // Barriers. "Full": written, by TMA or by warps; "empty": read by all that read it.
  __device__ __forceinline__ ptx::Address barrier(int index) const { return base + kLayout.barriers + 8 * index; }
  __device__ __forceinline__ ptx::Address k_full(int buffer = 0) const { return barrier(buffer); }
  __device__ __forceinline__ ptx::Address v_full(int buffer = 0) const {
    return barrier(kConfig.kv_buffers() + buffer);
  }
  /// Where one tile's K and V have room. Two have the barriers of the tiles' records.
  __device__ __forceinline__ ptx::Address kv_empty() const { return barrier(2 * kConfig.kv_buffers()); }
  static constexpr int kQ = 2 * kConfig.kv_buffers() + 1, kDo = kQ + 2 * kConfig.q_stages,
                       kDs = kDo + 2 * kConfig.d_o_stages, kDq = kDs + shared::kDsBuffers,
                       kTile = kDq + 2 * shared::kDqBuffers, kDsEmpty = kTile + 2 * kConfig.tile_buffers(),
                       kLoaded = kDsEmpty + (kConfig.d_q_apart ? shared::kDsBuffers : 0),
                       kRing = kLoaded + (kConfig.draws() ? 1 : 0);
  __device__ __forceinline__ ptx::Address q_full(int slot) const { return barrier(kQ + slot); }
  __device__ __forceinline__ ptx::Address q_empty(int slot) const { return barrier(kQ + kConfig.q_stages + slot); }
  __device__ __forceinline__ ptx::Address d_o_full(int slot) const { return barrier(kDo + slot); }
  __device__ __forceinline__ ptx::Address d_o_empty(int slot) const { return barrier(kDo + kConfig.d_o_stages + slot); }
  __device__ __forceinline__ ptx::Address d_s_full(int buffer) const { return barrier(kDs + buffer); }
  // d_q_apart.
  __device__ __forceinline__ ptx::Address d_s_empty(int buffer) const { return barrier(kDsEmpty + buffer); }
  __device__ __forceinline__ ptx::Address d_q_full(int buffer) const { return barrier(kDq + buffer); }
  __device__ __forceinline__ ptx::Address d_q_empty(int buffer) const {
    return barrier(kDq + shared::kDqBuffers + buffer);
  }

  // draws(): all loads of a tile have been asked for.
  __device__ __forceinline__ ptx::Address loaded() const { return barrier(kLoaded); }
  // ring: the tile's units are dq.
  __device__ __forceinline__ ptx::Address converted() const { return barrier(kRing); }

  __device__ __forceinline__ ptx::Address tile_full(int buffer) const { return barrier(kTile + buffer); }
  __device__ __forceinline__ ptx::Address tile_empty(int buffer) const {
    return barrier(kTile + kConfig.tile_buffers() + buffer);
  }

  /// By one thread, before the first __syncthreads.
  __device__ __forceinline__ void initialise() const {
    for (int buffer = 0; buffer < kConfig.kv_buffers(); ++buffer) {
      ptx::barrier_init(k_full(buffer), 1);
      ptx::barrier_init(v_full(buffer), 1);
    }
    ptx::barrier_init(kv_empty(), kWarps);
    for (int slot = 0; slot < kConfig.q_stages; ++slot) {
      ptx::barrier_init(q_full(slot), 1);
      ptx::barrier_init(q_empty(slot), kWarps);
    }
    for (int slot = 0; slot < kConfig.d_o_stages; ++slot) {
      ptx::barrier_init(d_o_full(slot), 1);
      ptx::barrier_init(d_o_empty(slot), kWarps);
    }
    for (int buffer = 0; buffer < shared::kDsBuffers; ++buffer) {
      ptx::barrier_init(d_s_full(buffer), kWarps);
      if constexpr (kConfig.d_q_apart) ptx::barrier_init(d_s_empty(buffer), 4);
    }
    for (int buffer = 0; buffer < shared::kDqBuffers; ++buffer) {
      ptx::barrier_init(d_q_full(buffer), 4);
      ptx::barrier_init(d_q_empty(buffer), 1);
    }
    for (int buffer = 0; buffer < kConfig.tile_buffers(); ++buffer) {
      ptx::barrier_init(tile_full(buffer), 1);
      // By consumers, the producer, adders, and dQ's warpgroup.
      ptx::barrier_init(tile_empty(buffer),
                        kWarps + 1 + (kConfig.d_q ? shared::kDqBuffers : 0) + (kConfig.d_q_apart ? 4 : 0));
    }
    if constexpr (kConfig.draws()) ptx::barrier_init(loaded(), 1);
    if constexpr (kConfig.ring) ptx::barrier_init(converted(), kConfig.d_q_apart ? 4 : kWarps);
    ptx::barrier_init_done();
  }

  static __device__ __forceinline__ int tile_count(const shared::BackwardSm90Params& params) {
    if constexpr (kConfig.device_lengths) return *params.listed;
    return params.tiles;
  }

  /// By one thread: brings a tile's record. A number past the last tile makes a record that says so.
  __device__ __forceinline__ void fetch_tile(const shared::BackwardSm90Params& params, int buffer, int number) const {
    const ptx::Address to = tile(buffer);
    if (number >= tile_count(params)) {
      ptx::store_word(to + shared::kTileSteps, -1);
      return;
    }
    store_tile_record<kConfig>(to, params, params.items[number]);
  }
};

}  // namespace heddle
