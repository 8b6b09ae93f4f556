// Where a CTA's buffers and barriers lie, by the one layout of forward_sm90_config.h.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/shared_words.cuh"
#include "families/forward_sm90/shared/forward_sm90_config.h"

namespace heddle {

template <auto kConfig>
struct SharedMemory {
  static constexpr shared::ForwardSm90Memory kLayout = shared::forward_sm90_memory(kConfig);
  static constexpr unsigned kQueryBytes = 64 * kConfig.qk_panels() * 128;              // of a warpgroup's queries
  static constexpr unsigned kKeyBytes = kConfig.kv_block * kConfig.qk_panels() * 128;  // of a block of keys
  static constexpr unsigned kLoadedValueBytes = kConfig.kv_block * kConfig.v_panels() * 128;
  static constexpr unsigned kValueBytes =
      kConfig.fp8() ? kConfig.kv_block * kConfig.transposed_rows() : kLoadedValueBytes;  // as products read them
  static constexpr unsigned kStreamedBytes = kConfig.streamed_part_bytes();              // of a warpgroup's tile

  ptx::Address base;

  __device__ __forceinline__ explicit SharedMemory(const void* dynamic) : base(ptx::address_of(dynamic)) {}

  __device__ __forceinline__ ptx::Address queries(int slot, int warpgroup) const {
    return base + kLayout.q + (slot * kConfig.warpgroups + warpgroup) * kQueryBytes;
  }
  __device__ __forceinline__ ptx::Address keys(int slot) const { return base + kLayout.k + slot * kKeyBytes; }
  __device__ __forceinline__ ptx::Address loaded_values(int slot) const {
    return base + kLayout.v + slot * kLoadedValueBytes;
  }
  __device__ __forceinline__ ptx::Address values(int slot) const { return base + kLayout.values + slot * kValueBytes; }
  __device__ __forceinline__ ptx::Address output(int warpgroup) const {
    return base + kLayout.o + warpgroup * kConfig.o_panels * 64 * 128;
  }
  __device__ __forceinline__ ptx::Address step(int slot) const {
    return base + kLayout.steps + slot * static_cast<int>(sizeof(shared::Step));
  }
  __device__ __forceinline__ ptx::Address origin(unsigned tile) const {
    static_assert(kConfig.stages + 2 <= shared::kTileSlots);
    return base + kLayout.tiles + tile % shared::kTileSlots * static_cast<unsigned>(shared::tile_bytes(kConfig));
  }
  /// If sequences differ: the beginning of the tile's SequenceSpan.
  __device__ __forceinline__ ptx::Address sequence(unsigned tile) const {
    return origin(tile) + static_cast<unsigned>(sizeof(shared::TileOrigin));
  }
  /// With sinks: that of the tile's first head, beside its origin; and beside the item.
  __device__ __forceinline__ ptx::Address sink(unsigned tile) const {
    return origin(tile) + static_cast<unsigned>(shared::tile_bytes(kConfig) - shared::sink_bytes(kConfig));
  }
  __device__ __forceinline__ ptx::Address item_sink(unsigned tile) const {
    return item(tile) + static_cast<unsigned>(shared::item_bytes(kConfig) - shared::sink_bytes(kConfig));
  }
  /// Packed: the head after the tile's last.
  __device__ __forceinline__ ptx::Address heads_end(unsigned tile) const {
    return sink(tile) - static_cast<unsigned>(shared::heads_end_bytes(kConfig));
  }
  __device__ __forceinline__ ptx::Address redo(unsigned tile) const {
    // The producer reads a tile's flag when it chooses the tile that takes its slot. With four slots more than
    // buffers of queries, it has by then loaded queries into the buffer that all warps had left after this tile.
    static_assert(kConfig.q_buffers + 4 <= shared::kTileSlots);
    return base + kLayout.redo + tile % shared::kTileSlots * 4;
  }
  __device__ __forceinline__ ptx::Address distances(int warpgroup) const {
    return base + kLayout.distances + warpgroup * shared::distance_words(kConfig) * 4;
  }
  /// Stored masks: where the words of the tile's key block 0 would stand.
  __device__ __forceinline__ ptx::Address mask_words_at(unsigned tile) const {
    return origin(tile) + static_cast<unsigned>(shared::tile_words_at(kConfig));
  }
  __device__ __forceinline__ ptx::Address item_words_at(unsigned tile) const {
    return item(tile) + static_cast<unsigned>(shared::item_words_at(kConfig));
  }
  /// 8 bits: the factors of the tile's first head.
  __device__ __forceinline__ ptx::Address factors(unsigned tile) const {
    return origin(tile) + static_cast<unsigned>(shared::tile_factors(kConfig));
  }
  __device__ __forceinline__ ptx::Address end(int slot) const { return base + kLayout.ends + slot * 4; }
  __device__ __forceinline__ ptx::Address streamed(int slot, int warpgroup) const {
    return base + kLayout.streamed + (slot * kConfig.warpgroups + warpgroup) * kStreamedBytes;
  }
  __device__ __forceinline__ ptx::Address item(unsigned tile) const {
    return base + kLayout.items + tile % shared::kItemSlots * static_cast<unsigned>(shared::item_bytes(kConfig));
  }

  __device__ __forceinline__ ptx::Address order(unsigned number) const {
    return base + kLayout.orders + number % shared::kGatherOrders * static_cast<unsigned>(sizeof(shared::GatherOrder));
  }

  // Barriers. "Full": loaded by TMA, or transposed; "empty": read by all that read it (queries: its threads say so,
  // else its warps).
  static constexpr int kQ = kConfig.q_buffers * kConfig.warpgroups;
  __device__ __forceinline__ ptx::Address barrier(int index) const { return base + kLayout.barriers + 8 * index; }
  __device__ __forceinline__ ptx::Address q_full(int slot, int warpgroup) const {
    return barrier(slot * kConfig.warpgroups + warpgroup);
  }
  __device__ __forceinline__ ptx::Address q_empty(int slot, int warpgroup) const {
    return barrier(kQ + slot * kConfig.warpgroups + warpgroup);
  }
  __device__ __forceinline__ ptx::Address k_full(int slot) const { return barrier(2 * kQ + slot); }
  __device__ __forceinline__ ptx::Address k_empty(int slot) const { return barrier(2 * kQ + kConfig.stages + slot); }
  __device__ __forceinline__ ptx::Address v_full(int slot) const { return barrier(2 * kQ + 2 * kConfig.stages + slot); }
  __device__ __forceinline__ ptx::Address v_empty(int slot) const {
    return barrier(2 * kQ + 3 * kConfig.stages + slot);
  }
  /// Values, where they are loaded: in 8 bits these are transposed before products read them.
  __device__ __forceinline__ ptx::Address loaded_full(int slot) const {
    return kConfig.fp8() ? barrier(2 * kQ + 4 * kConfig.stages + 3 + slot) : v_full(slot);
  }
  __device__ __forceinline__ ptx::Address loaded_empty(int slot) const {
    return kConfig.fp8() ? barrier(2 * kQ + 5 * kConfig.stages + 3 + slot) : v_empty(slot);
  }
  /// Every consumer warp has finished the list of tiles.
  __device__ __forceinline__ ptx::Address list_done() const { return barrier(2 * kQ + 4 * kConfig.stages); }
  /// A wish stands in wish(); and has been answered there.
  __device__ __forceinline__ ptx::Address wished() const { return barrier(2 * kQ + 4 * kConfig.stages + 1); }
  __device__ __forceinline__ ptx::Address answered() const { return barrier(2 * kQ + 4 * kConfig.stages + 2); }
  /// A warpgroup's tile of a streamed capture.
  __device__ __forceinline__ ptx::Address streamed_full(int slot, int warpgroup) const {
    constexpr int kFirst = 2 * kQ + (kConfig.fp8() ? 6 : 4) * kConfig.stages + 3;
    return barrier(kFirst + slot * kConfig.warpgroups + warpgroup);
  }
  __device__ __forceinline__ ptx::Address streamed_empty(int slot, int warpgroup) const {
    return streamed_full(kConfig.streamed_stages + slot, warpgroup);
  }
  __device__ __forceinline__ ptx::Address wish() const { return base + kLayout.wish; }
  static constexpr int kFirstOrdered =
      2 * kQ + (kConfig.fp8() ? 6 : 4) * kConfig.stages + 3 + 2 * kConfig.streamed_stages * kConfig.warpgroups;
  /// An order stands in order(number); and every gathering warp has read it.
  __device__ __forceinline__ ptx::Address ordered(unsigned number) const {
    return barrier(kFirstOrdered + static_cast<int>(number % shared::kGatherOrders));
  }
  __device__ __forceinline__ ptx::Address taken(unsigned number) const {
    return barrier(kFirstOrdered + shared::kGatherOrders + static_cast<int>(number % shared::kGatherOrders));
  }

  // Numbers of keys: a block's numbers; the producer's wish for them, and its barrier; a tile's table, and the barrier
  // that all warps of the tile have read it.
  __device__ __forceinline__ ptx::Address key_numbers(int slot) const {
    return base + kLayout.key_numbers + slot * shared::key_slot_bytes(kConfig);
  }
  __device__ __forceinline__ ptx::Address key_flags(int slot) const { return base + kLayout.key_flags + slot * 8; }
  __device__ __forceinline__ ptx::Address key_block(int slot) const { return base + kLayout.key_blocks + slot * 4; }
  static constexpr int kFirstAsked = kFirstOrdered + (kConfig.orders() ? 2 * shared::kGatherOrders : 0);
  __device__ __forceinline__ ptx::Address key_block_asked(int slot) const { return barrier(kFirstAsked + slot); }
  __device__ __forceinline__ ptx::Address table(unsigned tile) const {
    return base + kLayout.tables + tile % shared::kTables * static_cast<unsigned>(shared::table_bytes(kConfig));
  }
  __device__ __forceinline__ ptx::Address table_empty(unsigned tile) const {
    return barrier(kFirstAsked + kConfig.stages + static_cast<int>(tile % shared::kTables));
  }

  /// Arrivals that fill a buffer: of the producer (its arrival for keys covers the step beside them), of the gathering
  /// warps, and of the warps that compute numbers of the keys.
  static constexpr unsigned kKeyArrivals = 1 + (kConfig.gathers() ? kConfig.gather_warps() : 0) + kConfig.key_warps();
  static constexpr unsigned kValueArrivals = kConfig.gathers()  ? kConfig.gather_warps()
                                             : kConfig.orders() ? 2  // the second of who asks TMA for pages
                                                                : 1;

  /// By one thread, before a __syncthreads.
  __device__ __forceinline__ void initialise() const {
    constexpr int kWarps = 4 * kConfig.warpgroups;
    for (int i = 0; i < kQ; ++i) {
      ptx::barrier_init(barrier(i), 1);
      ptx::barrier_init(barrier(kQ + i), 128);
    }
    for (int slot = 0; slot < kConfig.stages; ++slot) {
      ptx::barrier_init(k_full(slot), kKeyArrivals);
      ptx::barrier_init(k_empty(slot), kWarps + (kConfig.streamed_bytes > 0 ? 1 : 0));  // the streamer reads steps
      ptx::barrier_init(v_full(slot), kConfig.fp8() ? kConfig.transposers() : kValueArrivals);
      ptx::barrier_init(v_empty(slot), kWarps);
      if constexpr (kConfig.fp8()) {
        ptx::barrier_init(loaded_full(slot), kValueArrivals);
        ptx::barrier_init(loaded_empty(slot), kConfig.transposers());
        ptx::store_word(end(slot), 0);
      }
    }
    for (int slot = 0; slot < kConfig.streamed_stages; ++slot) {
      for (int w = 0; w < kConfig.warpgroups; ++w) {
        ptx::barrier_init(streamed_full(slot, w), 1);
        ptx::barrier_init(streamed_empty(slot, w), 4);
      }
    }
    ptx::barrier_init(list_done(), kWarps);
    ptx::barrier_init(wished(), 1);
    ptx::barrier_init(answered(), 1);
    if constexpr (kConfig.orders()) {
      ptx::store_word(order(0) + shared::kOrderCount, 0);
      for (unsigned number = 0; number < shared::kGatherOrders; ++number) {
        ptx::barrier_init(ordered(number), 1);
        ptx::barrier_init(taken(number), kConfig.gather_warps());
      }
    }
    if constexpr (kConfig.computes_keys()) {
      for (int slot = 0; slot < kConfig.stages; ++slot) ptx::barrier_init(key_block_asked(slot), 1);
      for (unsigned tile = 0; tile < shared::kTables; ++tile) ptx::barrier_init(table_empty(tile), kWarps);
    }
    for (unsigned tile = 0; tile < shared::kTileSlots; ++tile) {
      ptx::store_word(redo(tile), 0);
    }
    ptx::barrier_init_done();
  }
};

}  // namespace heddle
