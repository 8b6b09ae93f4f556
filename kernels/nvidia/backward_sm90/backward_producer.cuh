// Single threads of a backward's CTA, each in a warp of its own. The producer loads a tile's keys and values, then
// walks its runs of query blocks. An adder for each buffer of dQ adds finished parts to memory. One draws tiles.
#pragma once

#include "backward_sm90/backward_maps.cuh"
#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/d_q_conversion.cuh"
#include "ptx/bulk.cuh"
#include "ptx/counter.cuh"
#include "ptx/tma.cuh"
#include "shared/backward_lists.h"

namespace heddle {

template <auto kConfig>
class BackwardProducer {
 public:
  using Memory = BackwardMemory<kConfig>;
  using Params = shared::BackwardSm90Params;

  __device__ __forceinline__ BackwardProducer(const Memory& memory, const BackwardMaps& maps, const Params& params)
      : memory_(memory), maps_(maps), params_(params) {}

  __device__ __forceinline__ void run() {
    for (;; tiles_.advance(kConfig.tile_buffers())) {
      ptx::barrier_wait(memory_.tile_full(slot_of(tiles_)), parity_of(tiles_));
      const int steps = word(shared::kTileSteps);
      if (steps < 0) break;
      // Keys and values of each tile have a phase, also where none are loaded: its parity is the record's buffer. With
      // a buffer for each record they are free when the record is.
      if constexpr (kConfig.kv_buffers() == 1) ptx::barrier_wait(memory_.kv_empty(), slot_of(tiles_) ^ 1);
      if (steps > 0) {
        load_tile();
      } else {
        ptx::barrier_arrive(memory_.k_full(kv_buffer()));
        ptx::barrier_arrive(memory_.v_full(kv_buffer()));
      }
      if constexpr (!kConfig.draws()) break;
      ptx::barrier_arrive(memory_.loaded());
      ptx::barrier_arrive(memory_.tile_empty(slot_of(tiles_)));
    }
  }

 private:
  // The tile's words stay in shared memory and are read where they are used: registers are few here.
  __device__ __forceinline__ int word(unsigned offset) const { return memory_.tile_word(slot_of(tiles_), offset); }

  __device__ __forceinline__ int kv_buffer() const { return kConfig.kv_buffers() == 1 ? 0 : slot_of(tiles_); }

  __device__ __forceinline__ void load_tile() {
    load_keys();
    values_pending_ = true;
    const shared::QueryRun* run = params_.runs + word(shared::kTileFirstRun);
#pragma unroll 1
    for (int left = word(shared::kTileRuns); left > 0; --left, ++run) {
      int flags = run->flags, end = run->end;
      if constexpr (kConfig.device_lengths) end = min(end, shared::blocks_of_rows(word(shared::kTileQLen)));
      const int head = run->head;
#pragma unroll 1
      for (int block = run->begin; block < end; ++block) {
        if (left == 1 && block + 1 == end) flags |= shared::kStepLast;
        load_queries(block, head, flags);
        if (values_pending_) load_values();
        load_d_o(block, head);
      }
    }
  }

  /// Rows as TMA takes them; `end`: where their sequence ends, if sequences differ.
  struct Rows {
    int first, end;
  };
  __device__ __forceinline__ Rows query_rows(int block) const {
    const int first = block * shared::kStepQueries;
    if constexpr (!kConfig.by_sequence) return {first, 0};
    return {first + params_.tensors.q_len - word(shared::kTileQLen), word(shared::kTileQEnd)};
  }
  __device__ __forceinline__ Rows key_rows() const {
    const int first = word(shared::kTileKvTile) * kConfig.keys();
    if constexpr (!kConfig.by_sequence) return {first, 0};
    return {first + word(shared::kTileKvBefore), word(shared::kTileKvEnd)};
  }

  /// The first panels of a tensor; products read zeros in those that it lacks.
  template <int kPanels>
  __device__ __forceinline__ void load(ptx::Address to, int rows_of_panel, const ptx::TensorMap& map, ptx::Address full,
                                       const Rows& rows, int head, int batched, unsigned long long priority) const {
    const int batch = batched ? word(shared::kTileBatch) : 0;
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      const ptx::Address at = to + panel * rows_of_panel * 128;
      if constexpr (kConfig.by_sequence) {
        ptx::tma_load_before(rows.end, at, map, full, panel * shared::kPanelColumns, rows.first, head, batch, priority);
      } else {
        ptx::tma_load(at, map, full, panel * shared::kPanelColumns, rows.first, head, batch, priority);
      }
    }
  }

  __device__ __forceinline__ void load_keys() const {
    constexpr unsigned kBytes = kConfig.qk_panels() * kConfig.keys() * 128;
    const ptx::Address full = memory_.k_full(kv_buffer());
    ptx::barrier_arrive_expecting(full, kBytes);
    load<kConfig.qk_panels()>(memory_.keys(kv_buffer()), kConfig.keys(), maps_.k, full, key_rows(),
                              word(shared::kTileKvHead), params_.tensors.k_batched, ptx::kEvictFirst);
  }
  /// Behind the first queries, which are needed sooner.
  __device__ __forceinline__ void load_values() {
    constexpr unsigned kBytes = kConfig.v_panels() * kConfig.keys() * 128;
    const ptx::Address full = memory_.v_full(kv_buffer());
    ptx::barrier_arrive_expecting(full, kBytes);
    load<kConfig.v_panels()>(memory_.values(kv_buffer()), kConfig.keys(), maps_.v, full, key_rows(),
                             word(shared::kTileKvHead), params_.tensors.v_batched, ptx::kEvictFirst);
    values_pending_ = false;
  }

  __device__ __forceinline__ void load_queries(int block, int head, int flags) {
    const ptx::Address full = memory_.q_full(slot_of(q_));
    ptx::barrier_wait(memory_.q_empty(slot_of(q_)), parity_of(q_));
    const int number = (word(shared::kTileFirstBlock) + block) * params_.q_heads + head;
    const int q_first = block * shared::kStepQueries;
    if (q_first + shared::kStepQueries > word(shared::kTileQLen)) flags |= shared::kStepRagged;
    ptx::store_words(memory_.step(slot_of(q_)), q_first, head, flags, number);
    constexpr unsigned kQueryBytes = kConfig.qk_panels() * shared::kStepQueries * 128;
    ptx::barrier_arrive_expecting(full, kQueryBytes + shared::block_bytes(kConfig.lse_rest));
    ptx::bulk_load(memory_.lse(slot_of(q_)),
                   params_.rows + static_cast<long long>(number) * shared::block_numbers(kConfig.lse_rest),
                   shared::block_bytes(kConfig.lse_rest), full);
    load<kConfig.qk_panels()>(memory_.queries(slot_of(q_)), shared::kStepQueries, maps_.q, full, query_rows(block),
                              head, params_.tensors.q_batched, ptx::kEvictLast);
    q_.advance(kConfig.q_stages);
  }

  __device__ __forceinline__ void load_d_o(int block, int head) {
    const ptx::Address full = memory_.d_o_full(slot_of(d_o_));
    ptx::barrier_wait(memory_.d_o_empty(slot_of(d_o_)), parity_of(d_o_));
    ptx::barrier_arrive_expecting(full, kConfig.v_panels() * shared::kStepQueries * 128);
    load<kConfig.v_panels()>(memory_.d_o(slot_of(d_o_)), shared::kStepQueries, maps_.d_o, full, query_rows(block), head,
                             params_.d_o_batched, ptx::kEvictLast);
    d_o_.advance(kConfig.d_o_stages);
  }

  const Memory& memory_;
  const BackwardMaps& maps_;
  const Params& params_;
  ptx::PackedRing tiles_{0}, q_{1}, d_o_{1};
  bool values_pending_ = true;
};

/// Brings a tile's records to a buffer.
template <auto kConfig>
__device__ __forceinline__ void publish_tile(const BackwardMemory<kConfig>& memory,
                                             const shared::BackwardSm90Params& params, int buffer, int tile) {
  const ptx::Address full = memory.tile_full(buffer);
  if (kConfig.ring && tile < memory.tile_count(params)) {
    ptx::bulk_load(memory.turn(buffer), params.ring.turns + tile, sizeof(shared::DqTurn), full);
    memory.fetch_tile(params, buffer, tile);
    ptx::barrier_arrive_expecting(full, sizeof(shared::DqTurn));
    return;
  }
  memory.fetch_tile(params, buffer, tile);
  ptx::barrier_arrive(full);
}

/// If tiles wait for each other, CTAs draw their first tiles, too. A CTA that waits for an earlier tile then knows that
/// a running CTA has it, even if other kernels leave room for only some of the CTAs.
template <auto kConfig>
constexpr bool kDrawsFirst = kConfig.ordered || (kConfig.ring && kConfig.draws());

/// The numbers of a CTA's tiles: its own first, then those that it draws, and at last one past the list's end.
template <auto kConfig>
__device__ __forceinline__ int first_tile(const shared::BackwardSm90Params& params) {
  return static_cast<int>(kDrawsFirst<kConfig> ? ptx::count_up(params.drawn) : blockIdx.x);
}
template <auto kConfig>
__device__ __forceinline__ int draw_tile(const shared::BackwardSm90Params& params, int tile_count) {
  if constexpr (kDrawsFirst<kConfig>) return static_cast<int>(ptx::count_up(params.drawn));
  return params.ctas < tile_count ? params.ctas + static_cast<int>(ptx::count_up(params.drawn)) : tile_count;
}

/// By one thread: brings tiles' records into shared memory. The record of a number past the last tile ends all loops.
/// The next tile is drawn once all of a tile's steps have been asked for: late, so that tiles begin nearly in the order
/// of the list, and early enough for its keys to come beside the last steps.
template <auto kConfig>
__device__ __forceinline__ void draw_tiles(const BackwardMemory<kConfig>& memory,
                                           const shared::BackwardSm90Params& params) {
  int tile = first_tile<kConfig>(params);
  publish_tile<kConfig>(memory, params, 0, tile);
  if constexpr (!kConfig.draws()) {
    if (kConfig.ring && tile < memory.tile_count(params)) count_units<kConfig>(memory, params, 0);
    return;
  }
  ptx::PackedRing tiles(1);
  for (int tile_count = memory.tile_count(params); tile < tile_count; tile_count = memory.tile_count(params)) {
    if constexpr (kConfig.ring) count_units<kConfig>(memory, params, slot_of(tiles));
    ptx::barrier_wait(memory.loaded(), slot_of(tiles));
    tile = draw_tile<kConfig>(params, tile_count);
    tiles.advance(kConfig.tile_buffers());
    ptx::barrier_wait(memory.tile_empty(slot_of(tiles)), parity_of(tiles));
    publish_tile<kConfig>(memory, params, slot_of(tiles), tile);
  }
}

/// The parts of dQ that come to a buffer. d_q_apart: each step has one, and the buffers take turns; else a step has one
/// for each of them.
template <auto kConfig>
struct PartsOfBuffer {
  int buffer;
  unsigned step = 0;  // among those of all tiles

  __device__ __forceinline__ bool has_none() const { return kConfig.d_q_apart && step % shared::kDqBuffers != buffer; }
  __device__ __forceinline__ unsigned parity() const {
    return (kConfig.d_q_apart ? step / shared::kDqBuffers : step) & 1;
  }
  /// How many came in the last `steps` steps.
  __device__ __forceinline__ int of_last(int steps) const {
    if (!kConfig.d_q_apart) return steps;
    const auto before = [&](unsigned end) {
      return static_cast<int>((end + shared::kDqBuffers - 1 - buffer) / shared::kDqBuffers);
    };
    return before(step) - before(step - steps);
  }
  /// The step's part among dQ's sums; `number`: of its block and head.
  template <class Number>
  __device__ __forceinline__ Number part(Number number) const {
    return kConfig.d_q_apart ? number : number * kConfig.d_q_parts() + buffer;
  }
};

/// Where dQ's sums of a tile's steps are, in units of a block and head. Registers are few: a ring's words stay in
/// shared memory.
template <auto kConfig>
struct UnitsOfTile {
  const BackwardMemory<kConfig>& memory;
  const shared::BackwardSm90Params& params;
  int tile, first_block;

  __device__ __forceinline__ UnitsOfTile(const BackwardMemory<kConfig>& memory,
                                         const shared::BackwardSm90Params& params, int tile)
      : memory(memory), params(params), tile(tile), first_block(memory.tile_word(tile, shared::kTileFirstBlock)) {}
  __device__ __forceinline__ int unit(int block, int head) const {
    if constexpr (kConfig.ring) {
      return memory.turn_word(tile, shared::kTurnFirstUnit) + block * params.ring.group + head;
    }
    return (first_block + block) * params.q_heads + head;
  }
};

/// By one thread for each buffer of dQ: the parts that come there.
template <auto kConfig>
__device__ __forceinline__ void add_parts(const BackwardMemory<kConfig>& memory,
                                          const shared::BackwardSm90Params& params, int buffer) {
  PartsOfBuffer<kConfig> parts{buffer};
  for (ptx::PackedRing tiles(0);; tiles.advance(kConfig.tile_buffers())) {
    ptx::barrier_wait(memory.tile_full(slot_of(tiles)), parity_of(tiles));
    const auto word = [&](unsigned offset) { return memory.tile_word(slot_of(tiles), offset); };
    const int steps = word(shared::kTileSteps);
    if (steps < 0) break;
    if constexpr (kConfig.ring) await_slot<kConfig>(memory, params, slot_of(tiles));
    const UnitsOfTile<kConfig> units(memory, params, slot_of(tiles));
    const shared::QueryRun* run = params.runs + word(shared::kTileFirstRun);
    int left = steps > 0 ? word(shared::kTileRuns) : 0;
    const int blocks = kConfig.device_lengths ? shared::blocks_of_rows(word(shared::kTileQLen)) : 0;
    if constexpr (!kConfig.ring) ptx::barrier_arrive(memory.tile_empty(slot_of(tiles)));
#pragma unroll 1
    for (; left > 0; --left, ++run) {
      int end = run->end;
      if constexpr (kConfig.device_lengths) end = min(end, blocks);
      const int head = run->head;
#pragma unroll 1
      for (int block = run->begin; block < end; ++block, ++parts.step) {
        if (parts.has_none()) continue;
        const long long part = parts.template part<long long>(units.unit(block, head));
        ptx::barrier_wait(memory.d_q_full(buffer), parts.parity());
        ptx::fence_for_tma();  // behind the stores of who computed it
        ptx::bulk_add(params.d_q + part * kConfig.d_q_part_floats(), memory.d_q(buffer), 4 * kConfig.d_q_part_floats());
        ptx::tma_store_commit();
        ptx::tma_store_wait_read();
        ptx::barrier_arrive(memory.d_q_empty(buffer));
      }
    }
    if constexpr (kConfig.ring) {
      const int added = parts.of_last(word(shared::kTileSteps));
      if (added > 0) count_parts(params.ring, memory.turn_word(slot_of(tiles), shared::kTurnSection), added);
      ptx::barrier_arrive(memory.tile_empty(slot_of(tiles)));
    }
    if constexpr (!kConfig.draws()) break;
  }
  ptx::tma_store_wait();
}

/// Adds parts after the tiles that hold the keys before: a part's turn passes from one to the next. A run's words are
/// read where they are used: registers are few.
template <auto kConfig>
__device__ __forceinline__ void add_parts_in_order(const BackwardMemory<kConfig>& memory,
                                                   const shared::BackwardSm90Params& params, int buffer) {
  PartsOfBuffer<kConfig> parts{buffer};
  for (ptx::PackedRing tiles(0);; tiles.advance(kConfig.tile_buffers())) {
    ptx::barrier_wait(memory.tile_full(slot_of(tiles)), parity_of(tiles));
    const auto word = [&](unsigned offset) { return memory.tile_word(slot_of(tiles), offset); };
    const int steps = word(shared::kTileSteps);
    if (steps < 0) break;
    if constexpr (kConfig.ring) await_slot<kConfig>(memory, params, slot_of(tiles));
    const UnitsOfTile<kConfig> units(memory, params, slot_of(tiles));
    int run = word(shared::kTileFirstRun);
    const int runs_end = steps > 0 ? run + word(shared::kTileRuns) : run;
    const int blocks = kConfig.device_lengths ? shared::blocks_of_rows(word(shared::kTileQLen)) : 0x7fffffff;
    if constexpr (!kConfig.ring) ptx::barrier_arrive(memory.tile_empty(slot_of(tiles)));
#pragma unroll 1
    for (; run < runs_end; ++run) {
#pragma unroll 1
      for (int block = params.runs[run].begin; block < min(params.runs[run].end, blocks); ++block, ++parts.step) {
        if (parts.has_none()) continue;
        const int part = parts.part(units.unit(block, params.runs[run].head));
        ptx::barrier_wait(memory.d_q_full(buffer), parts.parity());
        ptx::fence_for_tma();  // behind the stores of who computed it
        ptx::wait_for_turn(params.turns + part, params.ranks[run]);
        ptx::bulk_add(params.d_q + static_cast<long long>(part) * kConfig.d_q_part_floats(), memory.d_q(buffer),
                      4 * kConfig.d_q_part_floats());
        ptx::tma_store_commit();
        ptx::tma_store_wait_read();
        ptx::barrier_arrive(memory.d_q_empty(buffer));
        ptx::tma_store_wait();
        ptx::pass_turn(params.turns + part);
        if constexpr (kConfig.ring) {
          ptx::add_count(params.ring.added + memory.turn_word(slot_of(tiles), shared::kTurnSection), 1);
        }
      }
    }
    if constexpr (kConfig.ring) ptx::barrier_arrive(memory.tile_empty(slot_of(tiles)));
    if constexpr (!kConfig.draws()) break;
  }
}

/// All threads of the producer warpgroup, the CTA's first.
template <auto kConfig>
__device__ __forceinline__ void run_producers(const BackwardMemory<kConfig>& memory, const BackwardMaps& maps,
                                              const shared::BackwardSm90Params& params) {
  ptx::give_registers<shared::kProducerRegisters>();
  if (threadIdx.x == 0) BackwardProducer<kConfig>(memory, maps, params).run();
  if (threadIdx.x == 32) draw_tiles<kConfig>(memory, params);
  if constexpr (kConfig.d_q) {
    const int adder = static_cast<int>(threadIdx.x / 32) - 2;
    if (threadIdx.x % 32 == 0 && adder >= 0) {
      if constexpr (kConfig.ordered) {
        add_parts_in_order<kConfig>(memory, params, adder);
      } else {
        add_parts<kConfig>(memory, params, adder);
      }
    }
  }
}

}  // namespace heddle
