// dQ's sums as a ring (families/backward_sm90/shared/d_q_ring_params.h). The thread that adds waits until its slot has
// been cleared, and counts. The thread that converts waits until all parts have been added, makes dq of a unit's sums
// and clears them. The thread that draws tiles counts the conversion, so that no product waits for stores.
#pragma once

#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/d_q_output.cuh"
#include "ptx/bulk.cuh"
#include "ptx/counter.cuh"
#include "ptx/global_floats.cuh"
#include "ptx/tma.cuh"

namespace heddle {

/// Called by a thread that added, after its last part of a tile. The count waits until others can see its adds, and
/// with them the stores of the whole CTA.
__device__ __forceinline__ void count_parts(const shared::DqRing& ring, int section, int parts) {
  ptx::tma_store_wait();
  ptx::fence_for_bulk();
  ptx::add_count(ring.added + section, static_cast<unsigned>(parts));
}

/// Called by the thread that adds, before a tile's first part: waits until its slot has been cleared.
template <auto kConfig>
__device__ __forceinline__ void await_slot(const BackwardMemory<kConfig>& memory,
                                           const shared::BackwardSm90Params& params, int tile) {
  const int section = memory.turn_word(tile, shared::kTurnAwaited);
  if (section < 0) return;
  ptx::await_count(params.ring.converted + section,
                   static_cast<unsigned>(memory.turn_word(tile, shared::kTurnAwaitedUnits)));
  ptx::fence_for_bulk();
}

/// Called by the thread that converts: waits until all parts of the units of a tile's turn have been added.
template <auto kConfig>
__device__ __forceinline__ void await_adds(const BackwardMemory<kConfig>& memory,
                                           const shared::BackwardSm90Params& params, int tile) {
  ptx::await_count(params.ring.added + memory.turn_word(tile, shared::kTurnConverted),
                   static_cast<unsigned>(memory.turn_word(tile, shared::kTurnAdds)));
}

/// The conversion of what a tile's turn names, by a warpgroup for each 64 columns.
template <auto kConfig>
class DqConverter {
 public:
  using Memory = BackwardMemory<kConfig>;
  using Params = shared::BackwardSm90Params;
  static constexpr int kColumns = shared::kPanelColumns;

  /// `tile`: the buffer of its record.
  __device__ __forceinline__ DqConverter(const Memory& memory, const Params& params, int tile, int panel)
      : memory_(memory), params_(params), tile_(tile), panel_(panel) {}

  __device__ __forceinline__ void run() const {
    // One number for the warp, and the compiler knows it.
    const int count = __shfl_sync(~0U, own(shared::kTurnCount), 0);
    if (count == 0) return;
    if ((threadIdx.x & 31) == 0) await_adds<kConfig>(memory_, params_, tile_);
    __syncwarp();
    int unit = 0;
    if constexpr (!kConfig.queries_convert()) {  // which have registers for one
#pragma unroll 1
      for (; unit + 1 < count; unit += 2) convert<2>(unit);
    }
#pragma unroll 1
    for (; unit < count; ++unit) convert<1>(unit);
  }

 private:
  /// kUnits from the turn's number `from` on.
  template <int kUnits>
  __device__ __forceinline__ void convert(int from) const {
    constexpr int kChunks = kColumns / 8;
    const shared::DqRing& ring = params_.ring;
    int thread = static_cast<int>(threadIdx.x & 127);
    asm volatile("" : "+r"(thread));  // what follows from it must not stay in registers from unit to unit
    const int unit = own(shared::kTurnFirst) + from, first = own(shared::kTurnSlotUnit) + unit;
    const int column = panel_ * kColumns;
    float* const sums = params_.d_q + static_cast<long long>(first) * kUnitFloats + (column / 8 * 128 + thread) * 4;
    if (kConfig.ordered && thread < kUnits && own(shared::kTurnAdds) > 0) {
      params_.turns[(first + thread) * kConfig.d_q_parts() + panel_] = 0;
    }
    DqRows<kConfig> rows[kUnits];  // their places, known before the sums have come
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int block = ring.group == 1 ? unit + i : (unit + i) / ring.group;
      rows[i].set(ring.d_q, ring.blocks[own(shared::kTurnBlock) + block],
                  own(shared::kTurnHead) + unit + i - block * ring.group, thread);
    }
    float x[kUnits][kChunks / 4][16];
    if (own(shared::kTurnAdds) > 0) {
      for_chunks<kUnits, kChunks>([&](int i, int chunk) {
        ptx::load_floats(sums + i * kUnitFloats + chunk * (128 * 4), &x[i][chunk / 4][chunk % 4 * 4]);
      });
    } else {
      for_chunks<kUnits, kChunks>([&](int i, int chunk) {
        for (int e = 0; e < 4; ++e) x[i][chunk / 4][chunk % 4 * 4 + e] = 0;
      });
    }
    if (!kConfig.queries_convert() && own(shared::kTurnClears)) {
      for_chunks<kUnits, kChunks>(
          [&](int i, int chunk) { ptx::store_zeros(sums + i * kUnitFloats + chunk * (128 * 4)); });
    }
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
#pragma unroll
      for (int j = 0; j < kChunks / 4; ++j) rows[i].store(params_.scale, column + 32 * j, x[i][j]);
    }
  }

  static constexpr int kUnitFloats = kConfig.panels() * shared::kPartFloats;

  __device__ __forceinline__ int own(unsigned offset) const { return memory_.turn_word(tile_, offset); }

  template <int kUnits, int kChunks, class Each>
  __device__ __forceinline__ static void for_chunks(Each&& each) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) each(i, chunk);
    }
  }

  const Memory& memory_;
  const Params& params_;
  int tile_, panel_;
};

/// By one thread, once all have converted a tile's units. It clears those that dQ's warpgroup has converted.
template <auto kConfig>
__device__ __forceinline__ void count_units(const BackwardMemory<kConfig>& memory,
                                            const shared::BackwardSm90Params& params, int tile) {
  ptx::barrier_wait(memory.converted(), tile);  // of a CTA's tiles each other one has the first record
  const auto own = [&](unsigned offset) { return memory.turn_word(tile, offset); };
  if (own(shared::kTurnCount) == 0 || !own(shared::kTurnClears)) return;
  if constexpr (kConfig.queries_convert()) {
    static_assert(kConfig.panels() == 1);
    ptx::fence_for_tma();
    ptx::fence_for_bulk();
    // Registers are few: words stay in shared memory.
#pragma unroll 1
    for (int unit = 0; unit < own(shared::kTurnCount); ++unit) {
      const long long first = own(shared::kTurnSlotUnit) + own(shared::kTurnFirst) + unit;
      ptx::bulk_store(params.d_q + first * shared::kPartFloats, memory.zeros(), shared::kPartBytes);
    }
    ptx::tma_store_commit();
    ptx::tma_store_wait();
    ptx::fence_for_bulk();
  }
  ptx::add_count(params.ring.converted + own(shared::kTurnConverted), static_cast<unsigned>(own(shared::kTurnCount)));
}

}  // namespace heddle
