// The warp that draws tiles converts the sums of dQ's ring, too, beside the tile that is computed: pieces of 64 queries
// x 32 columns come to shared memory in turns, and zeros go from there to where they were. So a conversion takes few
// registers, and nobody who multiplies waits for it.
#pragma once

#include "backward_sm90/backward_memory.cuh"
#include "backward_sm90/d_q_conversion.cuh"
#include "backward_sm90/d_q_output.cuh"
#include "ptx/bulk.cuh"
#include "ptx/counter.cuh"
#include "ptx/shared_words.cuh"
#include "ptx/tma.cuh"

namespace heddle {

template <auto kConfig>
class DqConvertingWarp {
 public:
  using Memory = BackwardMemory<kConfig>;
  using Params = shared::BackwardSm90Params;

  __device__ __forceinline__ DqConvertingWarp(const Memory& memory, const Params& params)
      : memory_(memory), params_(params) {
#pragma unroll 1
    for (int at = 16 * lane(); at < shared::kPieceBytes; at += 16 * 32) ptx::store_zeros(memory_.zeros() + at);
    // No tile stands before the first one.
    if (lane() == 0) ptx::store_word(memory_.turn(kConfig.tile_buffers() - 1) + shared::kTurnCount, 0);
    ptx::fence_for_tma();
    __syncwarp();
  }

  /// Converts the units that a tile's turn names. `tile`: the buffer of its record.
  __device__ __forceinline__ void run(int tile) {
    tile_ = tile;
    if (lane() == 0 && pieces() > 0 && own(shared::kTurnAdds) > 0) {
      await_adds<kConfig>(memory_, params_, tile_);
      ptx::fence_for_bulk();
#pragma unroll 1
      for (int piece = 0; piece < min(pieces(), kBuffers); ++piece) load(piece, next_ + piece);
    }
#pragma unroll 1
    for (int piece = 0; piece < pieces(); ++piece) {
      convert(piece);
      __syncwarp();
      if (lane() == 0) {
        if (own(shared::kTurnClears)) {
          ptx::bulk_store(sums(piece), memory_.zeros(), shared::kPieceBytes);
          ptx::tma_store_commit();
        }
        if (own(shared::kTurnAdds) > 0 && piece + kBuffers < pieces()) load(piece + kBuffers, next_ + kBuffers);
      }
      if (own(shared::kTurnAdds) > 0) ++next_;
    }
    if (pieces() > 0 && own(shared::kTurnClears)) count();
  }

 private:
  static constexpr int kPiecesOfUnit = shared::kPanelColumns / shared::kPieceColumns;
  static constexpr int kBuffers = shared::kStagedPieces;
  static_assert(kConfig.panels() == 1);

  // Words of the turn stay in shared memory and are read where they are used: registers are few.
  __device__ __forceinline__ int own(unsigned offset) const { return memory_.turn_word(tile_, offset); }
  __device__ __forceinline__ int pieces() const { return kPiecesOfUnit * own(shared::kTurnCount); }
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x & 31); }
  /// Where a piece's sums stand.
  __device__ __forceinline__ float* sums(int piece) const {
    const int first = kPiecesOfUnit * (own(shared::kTurnSlotUnit) + own(shared::kTurnFirst)) + piece;
    return params_.d_q + static_cast<long long>(first) * (shared::kPieceBytes / 4);
  }
  /// `number`: of the piece, among all that came.
  __device__ __forceinline__ void load(int piece, unsigned number) const {
    const ptx::Address full = memory_.staged_full(number % kBuffers);
    ptx::barrier_arrive_expecting(full, shared::kPieceBytes);
    ptx::bulk_load(memory_.staged(number % kBuffers), sums(piece), shared::kPieceBytes, full);
  }
  /// By all lanes, once the piece has come, eight rows at a time.
  __device__ __forceinline__ void convert(int piece) const {
    using Row = DqRow<kConfig>;
    const shared::DqRing& ring = params_.ring;
    const int unit = own(shared::kTurnFirst) + piece / kPiecesOfUnit;
    const int number = ring.group == 1 ? unit : unit / ring.group;
    const shared::RowBlock block = ring.blocks[own(shared::kTurnBlock) + number];  // comes beside the piece
    const int head = own(shared::kTurnHead) + unit - number * ring.group;
    typename Row::One* to = static_cast<typename Row::One*>(ring.d_q.data) + block.batch * ring.d_q.stride[0] +
                            head * ring.d_q.stride[1] + (block.row + lane() / 4) * ring.d_q.stride[2];
    const bool any = own(shared::kTurnAdds) > 0;  // else all rows are zeros
    const int live = any ? block.live - lane() / 4 : 0, stored = block.stored - lane() / 4;
    if (any) ptx::barrier_wait(memory_.staged_full(next_ % kBuffers), next_ / kBuffers & 1);
#pragma unroll 1
    for (int row = 0; row < shared::kStepQueries; row += 8) {
      float pairs[4][2];
      load_pairs(row, pairs);
      Row::template store<Row::kVectorised>(to, row < live, row < stored, params_.scale,
                                            piece % kPiecesOfUnit * shared::kPieceColumns, pairs);
      to += 8 * ring.d_q.stride[2];
    }
  }
  /// The sums of eight rows that a lane stores. In the piece four floats follow each other: two of a row, and two of
  /// the row that is eight below.
  __device__ __forceinline__ void load_pairs(int row, float (&pairs)[4][2]) const {
    const ptx::Address from = memory_.staged(next_ % kBuffers) + row / 16 * (32 * 16) + row % 16;
    if constexpr (DqRow<kConfig>::kVectorised) {
      // Eight columns that follow each other. Lanes of a quad begin at different pairs, as banks want it.
      const int first = lane() % 4;
      const ptx::Address at = from + first * (128 * 16) + lane() / 4 * 64;
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::load_floats(at + (i + first) % 4 * 16, pairs[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::load_floats(from + i * (128 * 16) + 16 * lane(), pairs[i]);
    }
  }
  /// The units are zeros again, for who has the slot next.
  __device__ __forceinline__ void count() const {
    if constexpr (kConfig.ordered) {
      const int first = own(shared::kTurnSlotUnit) + own(shared::kTurnFirst);
      const int parts = own(shared::kTurnCount) * kConfig.d_q_parts();
      for (int part = lane(); part < parts; part += 32) params_.turns[first * kConfig.d_q_parts() + part] = 0;
      __syncwarp();
    }
    if (lane() != 0) return;
    ptx::tma_store_wait();
    ptx::fence_for_bulk();
    unsigned* const converted = params_.ring.converted + own(shared::kTurnConverted);
    if constexpr (kConfig.ordered) {
      ptx::add_count(converted, static_cast<unsigned>(own(shared::kTurnCount)));
    } else {
      ptx::add_count_of_bulk(converted, static_cast<unsigned>(own(shared::kTurnCount)));
    }
  }

  const Memory& memory_;
  const Params& params_;
  int tile_ = 0;
  unsigned next_ = 0;  // of pieces that have come
};

}  // namespace heddle
