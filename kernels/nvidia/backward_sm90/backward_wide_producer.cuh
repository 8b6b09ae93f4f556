// Single threads of a pair's CTA, each in a warp of its own: one loads the tile's keys and values, then its runs of
// query blocks; one brings dS to the other CTA; one for each buffer adds finished pieces of dQ to memory.
#pragma once

#include "backward_sm90/backward_maps.cuh"
#include "backward_sm90/wide_memory.cuh"
#include "backward_sm90/wide_steps.cuh"
#include "ptx/bulk.cuh"
#include "ptx/tma.cuh"
#include "shared/backward_lists.h"

namespace heddle {

template <auto kConfig>
class WideProducer {
 public:
  using Memory = WideMemory<kConfig>;
  using Params = shared::BackwardSm90Params;

  __device__ __forceinline__ WideProducer(const Memory& memory, const BackwardMaps& maps, const Params& params,
                                          int rank)
      : memory_(memory), maps_(maps), params_(params), rank_(rank) {}

  __device__ __forceinline__ void run() {
    if (word(shared::kTileSteps) <= 0) return;
    load_keys();
    bool values_pending = true;
    const shared::QueryRun* run = params_.runs + word(shared::kTileFirstRun);
#pragma unroll 1
    for (int left = word(shared::kTileRuns); left > 0; --left, ++run) {
      int end = run->end;
      if constexpr (kConfig.device_lengths) end = min(end, shared::blocks_of_rows(word(shared::kTileQLen)));
      const int flags = run->flags, head = run->head;
#pragma unroll 1
      for (int block = run->begin; block < end; ++block) {
        load_queries(block, head, flags);
        if (values_pending) load_values();
        values_pending = false;
        load_d_o(block, head);
      }
    }
  }

 private:
  static constexpr unsigned short kBoth = (1 << shared::kPair) - 1;

  // The tile's words stay in shared memory and are read where they are used: registers are few here.
  __device__ __forceinline__ int word(unsigned offset) const { return memory_.tile_word(offset); }

  /// Rows as TMA takes them; `end`: where their sequence ends, if sequences differ.
  struct Rows {
    int first, end;
  };
  __device__ __forceinline__ Rows query_rows(int block) const {
    const int first = block * shared::kStepQueries;
    if constexpr (!kConfig.by_sequence) return {first, 0};
    return {first + params_.tensors.q_len - word(shared::kTileQLen), word(shared::kTileQEnd)};
  }
  /// Keys of the CTA of that rank. If they all lie past their sequence's end, the last key before it: of a box that is
  /// outside of its map TMA touches the map's first element, which for sequences that differ is no memory of the
  /// tensor's.
  __device__ __forceinline__ Rows key_rows(int rank) const {
    const int first = word(shared::kTileKvTile) * kConfig.keys() + rank * shared::kWarpgroupRows;
    if constexpr (!kConfig.by_sequence) return {first, 0};
    return {min(first + word(shared::kTileKvBefore), params_.tensors.kv_len - 1), word(shared::kTileKvEnd)};
  }

  /// Loads `panels` panels of a tensor, from panel `from` on. `kForBoth`: every second one, to both CTAs; the other CTA
  /// brings the rest.
  template <bool kForBoth = false>
  __device__ __forceinline__ void load(int panels, int from, ptx::Address to, const ptx::TensorMap& map,
                                       ptx::Address full, const Rows& rows, int head, int batched,
                                       unsigned long long priority) const {
    const int batch = batched ? word(shared::kTileBatch) : 0;
#pragma unroll 1
    for (int panel = kForBoth ? rank_ : 0; panel < panels; panel += kForBoth ? shared::kPair : 1) {
      const ptx::Address at = to + panel * Memory::kPanel;
      const int column = (from + panel) * shared::kPanelColumns;
      if constexpr (kForBoth && kConfig.by_sequence) {
        ptx::tma_load_before_to(kBoth, rows.end, at, map, full, column, rows.first, head, batch, priority);
      } else if constexpr (kForBoth) {
        ptx::tma_load_to(kBoth, at, map, full, column, rows.first, head, batch, priority);
      } else if constexpr (kConfig.by_sequence) {
        ptx::tma_load_before(rows.end, at, map, full, column, rows.first, head, batch, priority);
      } else {
        ptx::tma_load(at, map, full, column, rows.first, head, batch, priority);
      }
    }
  }

  /// The other CTA's are needed last.
  __device__ __forceinline__ void load_keys() const {
    ptx::barrier_arrive_expecting(memory_.k_full(), kConfig.qk_panels() * Memory::kPanel);
    load(kConfig.qk_panels(), 0, memory_.keys(), maps_.k, memory_.k_full(), key_rows(rank_), word(shared::kTileKvHead),
         params_.tensors.k_batched, ptx::kEvictFirst);
  }
  __device__ __forceinline__ void load_values() const {
    ptx::barrier_arrive_expecting(memory_.v_full(), kConfig.v_panels() * Memory::kPanel);
    load(kConfig.v_panels(), 0, memory_.values(), maps_.v, memory_.v_full(), key_rows(rank_), word(shared::kTileKvHead),
         params_.tensors.v_batched, ptx::kEvictFirst);
    if constexpr (kConfig.d_q) {
      constexpr int kPanels = shared::wide_peer_panels(kConfig);
      ptx::barrier_arrive_expecting(memory_.peer_k_full(), kPanels * Memory::kPanel);
      load(kPanels, shared::wide_first_peer_panel(kConfig, rank_), memory_.peer_keys(), maps_.k, memory_.peer_k_full(),
           key_rows(rank_ ^ 1), word(shared::kTileKvHead), params_.tensors.k_batched, ptx::kEvictFirst);
    }
  }

  __device__ __forceinline__ void load_queries(int block, int head, int flags) {
    const int slot = slot_of(q_);
    const ptx::Address full = memory_.q_full(slot);
    ptx::barrier_wait(memory_.q_empty(slot), parity_of(q_));
    const int number = (word(shared::kTileFirstBlock) + block) * params_.q_heads + head;
    const int q_first = block * shared::kStepQueries;
    if (q_first + shared::kStepQueries > word(shared::kTileQLen)) flags |= shared::kStepRagged;
    ptx::store_words(memory_.step(slot), q_first, head, flags, number);
    ptx::barrier_arrive_expecting(full, kConfig.qk_panels() * Memory::kPanel + shared::block_bytes(kConfig.lse_rest));
    ptx::bulk_load(memory_.lse(slot),
                   params_.rows + static_cast<long long>(number) * shared::block_numbers(kConfig.lse_rest),
                   shared::block_bytes(kConfig.lse_rest), full);
    load<kConfig.shared_loads>(kConfig.qk_panels(), 0, memory_.queries(slot), maps_.q, full, query_rows(block), head,
                               params_.tensors.q_batched, ptx::kEvictLast);
    q_.advance(kConfig.q_stages);
  }

  /// In slots of d_o_panels() panels.
  __device__ __forceinline__ void load_d_o(int block, int head) {
    constexpr int kPanels = kConfig.d_o_panels();
#pragma unroll 1
    for (int panel = 0; panel < kConfig.v_panels(); panel += kPanels) {
      const int slot = slot_of(d_o_);
      const ptx::Address full = memory_.d_o_full(slot);
      ptx::barrier_wait(memory_.d_o_empty(slot), parity_of(d_o_));
      ptx::barrier_arrive_expecting(full, kPanels * Memory::kPanel);
      load<kConfig.shared_loads>(kPanels, panel, memory_.d_o(slot), maps_.d_o, full, query_rows(block), head,
                                 params_.d_o_batched, ptx::kEvictLast);
      d_o_.advance(kConfig.d_o_stages);
    }
  }

  const Memory& memory_;
  const BackwardMaps& maps_;
  const Params& params_;
  int rank_;
  ptx::PackedRing q_{1}, d_o_{1};
};

/// One thread sends each step's dS to the other CTA. Once dS has been stored, no warp reads the dS before it.
template <auto kConfig>
__device__ __forceinline__ void send_d_s(const WideMemory<kConfig>& memory, int rank) {
  const ptx::Address to = ptx::address_in(rank ^ 1, memory.d_s(rank)),
                     there = ptx::address_in(rank ^ 1, memory.d_s_copied());
  const int steps = memory.tile_word(shared::kTileSteps);
#pragma unroll 1
  for (int number = 0; number < steps; ++number) {
    ptx::barrier_wait(memory.d_s_stored(), number & 1);
    ptx::fence_for_tma();  // behind the stores of the warpgroup of gradients
    ptx::copy_there(to, memory.d_s(rank), WideMemory<kConfig>::kPanel, there);
    ptx::barrier_arrive_expecting(memory.d_s_copied(), WideMemory<kConfig>::kPanel);  // the other's
  }
}

/// By one thread for each buffer: its pieces of dQ.
template <auto kConfig>
__device__ __forceinline__ void add_pieces(const WideMemory<kConfig>& memory, const shared::BackwardSm90Params& params,
                                           int rank, int buffer) {
  unsigned parity = 0;
  visit_wide_steps<kConfig>(memory, params, [&](int step, long long block) {
    const int border = shared::wide_d_q_border(kConfig, step);
    int panel = rank == 0 ? 0 : border;
    const int last = rank == 0 ? border : kConfig.qk_panels();
    float* to =
        params.d_q + (block * kConfig.panels() + panel) * shared::kPartFloats + buffer * shared::kWidePieceFloats;
#pragma unroll 1
    for (; panel < last; ++panel, to += shared::kPartFloats) {
      ptx::barrier_wait(memory.d_q_full(buffer), parity);
      ptx::fence_for_tma();  // behind the stores of the warpgroup of queries
      ptx::bulk_add(to, memory.d_q(buffer), 4 * shared::kWidePieceFloats);
      ptx::tma_store_commit();
      ptx::tma_store_wait_read();
      ptx::barrier_arrive(memory.d_q_empty(buffer));
      parity ^= 1;
    }
  });
  ptx::tma_store_wait();
}

}  // namespace heddle
