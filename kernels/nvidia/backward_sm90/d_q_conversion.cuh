// dQ's sums as a ring (families/backward_sm90/shared/d_q_ring_params.h). Who adds waits until its slot has been
// cleared, and counts. Who converts waits until all have added, makes dq of a unit's sums and clears them; who draws
// tiles counts it, so that nobody who multiplies waits for stores.
#pragma once

#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/d_q_output.cuh"
#include "ptx/counter.cuh"
#include "ptx/global_floats.cuh"
#include "ptx/tma.cuh"

namespace heddle {

/// By who has added, behind its last part of a tile. Adds that have been waited for stand in the L2 cache, where the
/// count goes too. A count that releases would wait for the stores of all others of the CTA: 16,000 clocks beside those
/// of dK and dV.
__device__ __forceinline__ void count_parts(const shared::DqRing& ring, int section, int parts) {
  ptx::tma_store_wait();
  ptx::fence_for_bulk();
  ptx::add_count_of_bulk(ring.added + section, static_cast<unsigned>(parts));
}

/// The conversion of what a tile's turn names, by all threads of the warpgroups that convert, in pieces: a warpgroup
/// has kColumns of a piece's.
template <auto kConfig>
class DqConverter {
 public:
  using Memory = BackwardMemory<kConfig>;
  using Params = shared::BackwardSm90Params;
  // A warpgroup for dQ has few registers; others are two, and have a piece of 64 columns each.
  static constexpr int kColumns = kConfig.d_q_apart ? 32 : 32 * kConfig.panels();
  static constexpr int kWarpgroups = kConfig.d_q_apart ? 1 : kConfig.warpgroups;
  static constexpr int kPiecesOfUnit = shared::kPanelColumns * kConfig.panels() / (kColumns * kWarpgroups);

  /// `warpgroup`: among those that convert. `tile`: the buffer of its record.
  __device__ __forceinline__ DqConverter(const Memory& memory, const Params& params, int tile, int warpgroup)
      : memory_(memory), params_(params), tile_(tile), warpgroup_(warpgroup) {}

  /// One number for the warp, and the compiler knows it.
  __device__ __forceinline__ int pieces() const { return kPiecesOfUnit * __shfl_sync(~0U, own(shared::kTurnCount), 0); }
  /// All parts of the units have been added.
  __device__ __forceinline__ void await() const {
    if (pieces() > 0 && (threadIdx.x & 31) == 0) {
      ptx::await_count(params_.ring.added + memory_.turn_word(tile_, shared::kTurnConverted),
                       static_cast<unsigned>(memory_.turn_word(tile_, shared::kTurnAdds)));
    }
    __syncwarp();
  }
  __device__ __forceinline__ void run() const {
    await();
    const int count = pieces();
    int piece = 0;
#pragma unroll 1
    for (; piece + 1 < count; piece += 2) convert<2>(piece);
    if (piece < count) convert<1>(piece);
  }
  /// kPieces from number `piece` on: of so many units, or one of a unit's two.
  template <int kPieces>
  __device__ __forceinline__ void convert(int piece) const {
    static_assert(kPieces == 1 || kPiecesOfUnit == 1);
    constexpr int kChunks = kColumns / 8;
    const shared::DqRing& ring = params_.ring;
    const int unit = own(shared::kTurnFirst) + piece / kPiecesOfUnit, first = own(shared::kTurnSlotUnit) + unit;
    const int column = (kPiecesOfUnit == 1 ? warpgroup_ : piece % kPiecesOfUnit) * kColumns;
    float* const sums = params_.d_q + static_cast<long long>(first) * kUnitFloats + (column / 8 * 128 + thread()) * 4;
    if (kConfig.ordered && thread() < kPieces && own(shared::kTurnAdds) > 0) {
      params_.turns[(first + thread()) * kConfig.d_q_parts() + warpgroup_] = 0;
    }
    DqRows<kConfig> rows[kPieces];  // their places, known before the sums have come
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int block = ring.group == 1 ? unit + i : (unit + i) / ring.group;
      rows[i].set(ring.d_q, ring.blocks[own(shared::kTurnBlock) + block],
                  own(shared::kTurnHead) + unit + i - block * ring.group, thread());
    }
    float x[kPieces][kChunks / 4][16];
    if (own(shared::kTurnAdds) > 0) {
      for_chunks<kPieces, kChunks>([&](int i, int chunk) {
        ptx::load_floats(sums + i * kUnitFloats + chunk * (128 * 4), &x[i][chunk / 4][chunk % 4 * 4]);
      });
    } else {
      for_chunks<kPieces, kChunks>([&](int i, int chunk) {
        for (int e = 0; e < 4; ++e) x[i][chunk / 4][chunk % 4 * 4 + e] = 0;
      });
    }
    if (own(shared::kTurnClears)) {
      for_chunks<kPieces, kChunks>(
          [&](int i, int chunk) { ptx::store_zeros(sums + i * kUnitFloats + chunk * (128 * 4)); });
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int j = 0; j < kChunks / 4; ++j) rows[i].store(params_.scale, column + 32 * j, x[i][j]);
    }
  }

 private:
  static constexpr int kUnitFloats = kConfig.panels() * shared::kPartFloats;

  __device__ __forceinline__ int own(unsigned offset) const { return memory_.turn_word(tile_, offset); }
  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x & 127); }

  template <int kPieces, int kChunks, class Each>
  __device__ __forceinline__ static void for_chunks(Each&& each) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) each(i, chunk);
    }
  }

  const Memory& memory_;
  const Params& params_;
  int tile_, warpgroup_;
};

/// By who adds, before a tile's first part: its slot has been cleared.
template <auto kConfig>
__device__ __forceinline__ void await_slot(const BackwardMemory<kConfig>& memory,
                                           const shared::BackwardSm90Params& params, int tile) {
  const int section = memory.turn_word(tile, shared::kTurnAwaited);
  if (section < 0) return;
  ptx::await_count(params.ring.converted + section,
                   static_cast<unsigned>(memory.turn_word(tile, shared::kTurnAwaitedUnits)));
  ptx::fence_for_bulk();
}

/// By one thread, behind the stores of all that have converted a tile's units.
template <auto kConfig>
__device__ __forceinline__ void count_units(const BackwardMemory<kConfig>& memory,
                                            const shared::BackwardSm90Params& params, int tile) {
  const int count = memory.turn_word(tile, shared::kTurnCount);
  if (count == 0 || !memory.turn_word(tile, shared::kTurnClears)) return;
  ptx::add_count(params.ring.converted + memory.turn_word(tile, shared::kTurnConverted), static_cast<unsigned>(count));
}

}  // namespace heddle
