// What a consumer warp reads of the producer's words: what a step is, where its tile stands, of what sequence it is.
#pragma once

#include "pieces/memory.cuh"
#include "pieces/tile_rows.cuh"
#include "ptx/shared_words.cuh"

namespace heddle {

using shared::TilePlace;

/// The sequence of a tile, for what is written of it.
struct TileSequence {
  int q_begin, q_len;
};

/// By a buffer of keys, and by the tile's number, while the producer keeps them.
template <ForwardSm90Config kConfig>
struct TileReads {
  const SharedMemory<kConfig>& memory;
  const shared::ForwardSm90Params& params;
  int warpgroup;

  /// What the producer says of the keys in a buffer.
  __device__ __forceinline__ shared::Step step(int slot) const {
    // The lane that gives the buffer back reads, and passes the word on: a shuffled value is one for the warp, and the
    // compiler knows it. Else every address that follows is one of each thread's own.
    shared::Step step = 0;
    asm volatile(
        "{\n"
        ".reg .pred first;\n"
        "setp.eq.u32 first, %2, 0;\n"
        "@first ld.shared.s32 %0, [%1];\n"
        "}"
        : "+r"(step)
        : "r"(memory.step(slot)), "r"(threadIdx.x & 31)
        : "memory");
    return __shfl_sync(~0U, step, 0);
  }
  __device__ __forceinline__ TilePlace place(unsigned tile) const {
    TilePlace place;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(place.q_first), "=r"(place.head), "=r"(place.batch), "=r"(place.item)
                 : "r"(memory.place(tile))
                 : "memory");
    return place;
  }
  __device__ __forceinline__ int sequence_word(unsigned tile, unsigned offset) const {
    return ptx::load_word(memory.sequence(tile) + offset);
  }
  /// Of a tile's sequence.
  __device__ __forceinline__ TileSequence sequence(unsigned tile) const {
    if constexpr (!kConfig.by_sequence) return {0, params.q_len};
    return {sequence_word(tile, shared::kSequenceQBegin), sequence_word(tile, shared::kSequenceQLen)};
  }
  __device__ __forceinline__ int kv_len(unsigned tile) const {
    return kConfig.by_sequence ? sequence_word(tile, shared::kSequenceKvLen) : params.kv_len;
  }
  __device__ __forceinline__ int q_start(unsigned tile) const {
    return kConfig.by_sequence ? sequence_word(tile, shared::kSequenceQStart) : params.mod.q_start;
  }
  /// Packed: the heads that there are from that of this warp's rows on, in the tile; none: nothing is stored of them.
  __device__ __forceinline__ int heads_left(unsigned tile, const TilePlace& at) const {
    return ptx::load_word(memory.heads_end(tile)) - at.head - head_of_warp<kConfig>(warpgroup);
  }
  /// Of this warp's rows.
  __device__ __forceinline__ TilePlace own_place(unsigned tile) const {
    TilePlace at = place(tile);
    // Rows that are no head's hold the queries of the last one.
    if constexpr (kConfig.packs()) at.head += head_of_warp<kConfig>(warpgroup) + min(heads_left(tile, at) - 1, 0);
    return at;
  }
  /// As sequence(); where this warp's rows are no head's, one without queries.
  __device__ __forceinline__ TileSequence own_sequence(unsigned tile) const {
    TileSequence own = sequence(tile);
    if constexpr (kConfig.packs()) {
      if (heads_left(tile, place(tile)) <= 0) own.q_len = 0;
    }
    return own;
  }
};

}  // namespace heddle
