// The producer: one thread that walks the CTA's tiles and their runs of key blocks, and loads what the consumers read.
#pragma once

#include "ptx/tma.cuh"
#include "forward_sm90/memory.cuh"
#include "forward_sm90/tile_source.cuh"

namespace heddle {

/// `Params`: the kernel's parameters, with tiles, listed, tensors and group.
template <auto kConfig, class Params>
class Producer {
 public:
  using Memory = SharedMemory<kConfig>;
  // One register more spills where numbers of keys are asked for, too.
  using BufferRing = ptx::ChooseRing<kConfig.computes_keys()>;

  __device__ __forceinline__ Producer(const Memory& memory, const ptx::TensorMap& q_map, const ptx::TensorMap& k_map,
                                      const ptx::TensorMap& v_map, const Params& params)
      : memory_(memory), q_map_(q_map), k_map_(k_map), v_map_(v_map), params_(params) {}

  /// Runs the CTA's first tile, then the tiles that it draws. Tiles whose row sums left the safe range are repeated,
  /// with the running maximum.
  __device__ __forceinline__ void run() {
    next_ = TileSource<kConfig, Params>::own(params_);
    for (bool drained = next_ < 0;;) {
      while (next_ >= 0) load_tile(drained);
      load_pending_values();
      if (drained) break;
      // Repeats that the end of the list has delayed come now.
      ptx::barrier_wait(memory_.list_done(), 0);
      drained = true;
      const int repeat = take_any_repeat();
      if (repeat == kNoTile) break;
      wish(repeat);
      next_ = answer();
    }
    ptx::barrier_wait(memory_.k_empty(ptx::slot_of(k_)), ptx::parity_of(k_));
    write_step(shared::kStepStop);
    ask_for_numbers(shared::kNoKeyBlock);
    for (unsigned i = 0; i < Memory::kKeyArrivals; ++i) ptx::barrier_arrive(memory_.k_full(ptx::slot_of(k_)));
    if constexpr (kConfig.fp8()) end_values();
    wish(kNoMoreTiles);
    if constexpr (kConfig.orders()) order({.tensor = shared::kGatherNothing});
  }

 private:
  __device__ __forceinline__ void wish(int wish) {
    ptx::store_word(memory_.wish(), wish);
    ptx::barrier_arrive(memory_.wished());
  }
  __device__ __forceinline__ int answer() {
    ptx::barrier_wait(memory_.answered(), answers_ & 1);
    ++answers_;
    return ptx::load_word(memory_.wish());
  }

  /// If some warp wants the tile again whose slot number `tile` is to take: what to wish for; the flag is gone. Else
  /// kDraw.
  __device__ __forceinline__ int take_repeat(unsigned tile) {
    if (ptx::load_word(memory_.redo(tile)) == 0) return kDraw;
    ptx::store_word(memory_.redo(tile), 0);
    return ptx::load_word(memory_.origin(tile) + shared::kOriginItem) | kSafely;
  }

  /// The first such tile in the slots that the next tiles are to take, or kNoTile.
  __device__ __forceinline__ int take_any_repeat() {
#pragma unroll 1
    for (unsigned i = 0; i < shared::kTileSlots; ++i) {
      const int repeat = take_repeat(tile_ + i);
      if (repeat != kDraw) return repeat;
    }
    return kNoTile;
  }

  // The tile's words stay in shared memory and are read where they are used: registers are few here.
  __device__ __forceinline__ ptx::Address item() const { return memory_.item(tile_ - 1); }

  __device__ __forceinline__ void load_tile(bool drained) {
    ++tile_;
    write_origin();
    ptx::store_word(item() + shared::kItemBefore,
                    next_ & kSafely ? shared::kStepSafe : 0);  // from here on: of each of its steps
    int block = -1;
    for (int left = ptx::load_word(item() + shared::kItemSteps); left > 0; --left) {
      // The compiler is not to keep every address that follows from the tile's number in a register.
      asm volatile("" : "+r"(tile_));
      const bool first = block < 0;
      // A draw takes half a step. It comes no earlier than this, so that a delayed CTA leaves tiles to others.
      if (left == 2 || (left == 1 && first)) wish(drained ? take_any_repeat() : take_repeat(tile_));
      asm volatile("cp.async.wait_all;" ::: "memory");  // the run
      block = max(block, ptx::load_word(item() + shared::kItemRunBegin));
      const bool last_of_run = block + 1 == ptx::load_word(item() + shared::kItemRunEnd);
      int flags = ptx::load_word(item() + shared::kItemBefore) |
                  ptx::load_word(item() + (last_of_run ? shared::kItemRunLastFlags : shared::kItemRunFlags));
      const int keys = key_block(block);
      if ((keys + 1) * kConfig.kv_block > kv_len(item())) flags |= shared::kStepRagged;

      const ptx::Address full = memory_.k_full(ptx::slot_of(k_));
      ptx::barrier_wait(memory_.k_empty(ptx::slot_of(k_)), ptx::parity_of(k_));
      if constexpr (kConfig.orders()) {
        order_block(shared::kGatherK, memory_.keys(ptx::slot_of(k_)), full, keys, item());
      } else {
        load_block<kConfig.qk_panels()>(memory_.keys(ptx::slot_of(k_)), k_map_, full, keys, item(),
                                        params_.tensors.k_batched);
      }
      // Before what the last step has to wait for: they take about as long as the keys.
      ask_for_numbers(2 * keys + (first ? 1 : 0));
      if (first) load_queries();
      if (left == 1) {
        // The step's word has to wait for the answer; loads do not.
        if (first) load_pending_values();
        next_ = answer();
        flags |= shared::kStepLast |
                 (next_ < 0 ? shared::kStepListEnd : ptx::load_word(memory_.item(tile_) + shared::kItemBefore));
      }
      write_step(keys << shared::kStepFlagBits | flags);
      if constexpr (kConfig.gathers()) {
        ptx::barrier_arrive(full);
      } else {
        ptx::barrier_arrive_expecting(full, Memory::kKeyBytes);
      }
      k_.advance(kConfig.stages);
      // Values follow one step behind, as they are used.
      load_pending_values();
      pending_ = keys * shared::kItemSlots + (tile_ - 1) % shared::kItemSlots;
      ++block;
      if (last_of_run && left > 1) fetch_run();
    }
  }

  /// Asks for the numbers of a block's keys.
  __device__ __forceinline__ void ask_for_numbers(int of_block) const {
    if constexpr (kConfig.computes_keys()) {
      ptx::store_word(memory_.key_block(ptx::slot_of(k_)), of_block);
      ptx::barrier_arrive(memory_.key_block_asked(ptx::slot_of(k_)));
    }
  }

  /// The number of a step's key block: lists of tiles that descend count from the last one, of the tile's sequence.
  __device__ __forceinline__ int key_block(int block) const {
    if constexpr (!kConfig.descending) return block;
    // With lengths on the device, of the longest: there its blocks past the end have been cut.
    constexpr bool kOwn = kConfig.by_sequence && !kConfig.device_lengths;
    return (kOwn ? (kv_len(item()) - 1) / kConfig.kv_block : params_.tensors.last_block) - block;
  }

  __device__ __forceinline__ void fetch_run() {
    const int run = ptx::load_word(item() + shared::kItemFirstRun) + 1;
    ptx::store_word(item() + shared::kItemFirstRun, run);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(item() + shared::kItemRunBegin),
                 "l"(params_.tiles.runs + run)
                 : "memory");
  }

  /// Loads the tile's queries into the buffer of its number.
  __device__ __forceinline__ void load_queries() {
    const unsigned tile = tile_ - 1;
    const int slot = static_cast<int>(tile % kConfig.q_buffers);
    Queries queries;
    constexpr bool kHeld = !kConfig.by_sequence && !kConfig.packs();
    if constexpr (kHeld) queries = this->queries();
#pragma unroll 1
    for (int w = 0; w < kConfig.warpgroups; ++w) {
      const ptx::Address full = memory_.q_full(slot, w);
      ptx::barrier_wait(memory_.q_empty(slot, w), (tile / kConfig.q_buffers + 1) & 1);
      ptx::barrier_arrive_expecting(full, Memory::kQueryBytes);
      if constexpr (kConfig.packs()) {
        load_packed(memory_.queries(slot, w), full, w);
      } else {
        if constexpr (kConfig.by_sequence) queries = this->queries();  // held over the loop they spill
        for (int panel = 0; panel < kConfig.qk_panels(); ++panel) {
          load(memory_.queries(slot, w) + panel * 64 * 128, q_map_, full, panel * kConfig.panel_columns(),
               box_of(queries.rows, w), queries.head, queries.batch, ptx::kEvictFirst);
        }
      }
    }
  }

  /// Packed: the head of part `part` of warpgroup w's rows. A part beyond the tile's heads takes the last head, so its
  /// rows ask for nothing that other rows do not.
  __device__ __forceinline__ int packed_head(int w, int part) const {
    return min(ptx::load_word(item() + shared::kItemHead) + w * kConfig.warpgroup_heads() + part,
               (ptx::load_word(item() + shared::kItemKvHead) + 1) * params_.group - 1);
  }
  /// Packed: a box a head and panel. They are multiples of 8 rows, after which the swizzle repeats.
  __device__ __forceinline__ void load_packed(ptx::Address to, ptx::Address full, int w) const {
    static_assert(!kConfig.packs() || (kConfig.packed_queries % 16 == 0 && 64 % kConfig.queries() == 0));
#pragma unroll 1
    for (int part = 0; part < kConfig.warpgroup_heads(); ++part) {
      const Queries queries = this->queries();
      const int head = packed_head(w, part);
#pragma unroll 1
      for (int panel = 0; panel < kConfig.qk_panels(); ++panel) {
        load(to + panel * 64 * 128 + part * (kConfig.queries() * 128), q_map_, full, panel * kConfig.panel_columns(),
             queries.rows, head, queries.batch, ptx::kEvictFirst);
      }
    }
  }

  __device__ __forceinline__ void load_pending_values() {
    if (pending_ < 0) return;
    const ptx::Address full = memory_.loaded_full(ptx::slot_of(v_));
    ptx::barrier_wait(memory_.loaded_empty(ptx::slot_of(v_)), ptx::parity_of(v_));
    if constexpr (!kConfig.gathers()) ptx::barrier_arrive_expecting(full, pending_value_bytes());
    if constexpr (kConfig.orders()) {
      order_block(shared::kGatherV, memory_.loaded_values(ptx::slot_of(v_)), full, pending_ / shared::kItemSlots,
                  memory_.item(static_cast<unsigned>(pending_)));
    } else {
      load_block<kConfig.v_panels()>(memory_.loaded_values(ptx::slot_of(v_)), v_map_, full,
                                     pending_ / shared::kItemSlots, memory_.item(static_cast<unsigned>(pending_)),
                                     params_.tensors.v_batched);
    }
    v_.advance(kConfig.stages);
    pending_ = -1;
  }

  /// Bytes of the pending values that TMA brings: with pages, boxes of which some row is there.
  __device__ __forceinline__ unsigned pending_value_bytes() const {
    if constexpr (!kConfig.orders()) return Memory::kLoadedValueBytes;
    const int rows = rows_left(pending_ / shared::kItemSlots, memory_.item(static_cast<unsigned>(pending_)));
    constexpr int kBox = kConfig.page_box();
    return min((rows + kBox - 1) / kBox * kBox, kConfig.kv_block) * (kConfig.v_panels() * 128);
  }

  /// Tells the warps that transpose values that all have come.
  __device__ __forceinline__ void end_values() {
    ptx::barrier_wait(memory_.loaded_empty(ptx::slot_of(v_)), ptx::parity_of(v_));
    ptx::store_word(memory_.end(ptx::slot_of(v_)), 1);
    for (unsigned i = 0; i < Memory::kValueArrivals; ++i) ptx::barrier_arrive(memory_.loaded_full(ptx::slot_of(v_)));
  }

  template <int kPanels>
  __device__ __forceinline__ void load_block(ptx::Address to, const ptx::TensorMap& map, ptx::Address full, int block,
                                             ptx::Address item, int batched) {
    const int head = ptx::load_word(item + shared::kItemKvHead),
              batch = batched ? ptx::load_word(item + shared::kItemBatch) : 0;
    const Rows rows = key_rows(block * kConfig.kv_block, item);
    for (int panel = 0; panel < kPanels; ++panel) {
      load(to + panel * kConfig.kv_block * 128, map, full, panel * kConfig.panel_columns(), rows, head, batch,
           ptx::kEvictLast);
    }
  }

  /// Orders rows from the gathering warps. The buffer is empty: this thread has waited for that.
  __device__ __forceinline__ void order(const shared::GatherOrder& order) {
    const unsigned count = ptx::load_word(memory_.order(0) + shared::kOrderCount);  // in a register it spills
    ptx::store_word(memory_.order(0) + shared::kOrderCount, count + 1);
    const ptx::Address at = memory_.order(count);
    ptx::barrier_wait(memory_.taken(count), (count / shared::kGatherOrders + 1) & 1);
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(order.tensor), "r"(order.to),
                 "r"(order.full), "r"(order.sequence)
                 : "memory");
    ptx::store_word(at + shared::kOrderHead, order.head);
    ptx::store_word(at + shared::kOrderRow, order.row);
    ptx::store_word(at + shared::kOrderRows, order.rows);
    ptx::barrier_arrive(memory_.ordered(count));
  }
  __device__ __forceinline__ void order_block(int tensor, ptx::Address to, ptx::Address full, int block,
                                              ptx::Address item) {
    order({.tensor = tensor,
           .to = to,
           .full = full,
           .sequence = ptx::load_word(item + shared::kItemBatch),
           .head = ptx::load_word(item + shared::kItemKvHead),
           .row = block * kConfig.kv_block,
           .rows = rows_left(block, item)});
  }
  /// Rows of the item's keys and values that are left, from the first of a block on.
  __device__ __forceinline__ int rows_left(int block, ptx::Address item) const {
    // If only the device knows lengths, a sequence without keys has a step. Its keys are not read, but a row is needed
    // to find a page: the first one serves.
    const int rows = kv_len(item) - block * kConfig.kv_block;
    return kConfig.device_lengths ? max(rows, 1) : rows;
  }

  __device__ __forceinline__ int kv_len(ptx::Address item) const {
    return kConfig.by_sequence ? ptx::load_word(item + kSequence + shared::kSequenceKvLen) : params_.tensors.kv_len;
  }

  /// Rows as TMA takes them; `end`: where their sequence ends, if sequences differ.
  struct Rows {
    int first, end;
  };
  /// The queries of a tile.
  struct Queries {
    int head;
    Rows rows;
    int batch;
  };
  /// Rows of warpgroup w's box. If all of them lie past their sequence's end, it is the last row before the end: TMA
  /// touches the first element of a map whose box is outside, which for sequences that differ is no memory of the
  /// tensor's.
  __device__ __forceinline__ Rows box_of(const Rows& rows, int w) const {
    const int first = rows.first + 64 * w;
    return {kConfig.by_sequence ? min(first, params_.tensors.q_len - 1) : first, rows.end};
  }
  /// Queries of the tile that is loaded.
  __device__ __forceinline__ Queries queries() const {
    return {ptx::load_word(item() + shared::kItemHead),
            query_rows(ptx::load_word(item() + shared::kItemQTile) * kConfig.queries()),
            params_.tensors.q_batched ? ptx::load_word(item() + shared::kItemBatch) : 0};
  }
  __device__ __forceinline__ Rows query_rows(int first) const {
    if constexpr (!kConfig.by_sequence) return {first, 0};
    return {first + params_.tensors.q_len - ptx::load_word(item() + kSequence + shared::kSequenceQLen),
            ptx::load_word(item() + kSequence + shared::kSequenceQEnd)};
  }
  __device__ __forceinline__ static Rows key_rows(int first, ptx::Address item) {
    if constexpr (!kConfig.by_sequence) return {first, 0};
    return {first + ptx::load_word(item + kSequence + shared::kSequenceKvBefore),
            ptx::load_word(item + kSequence + shared::kSequenceKvEnd)};
  }
  __device__ __forceinline__ static void load(ptx::Address to, const ptx::TensorMap& map, ptx::Address full, int column,
                                              const Rows& rows, int head, int batch, unsigned long long priority) {
    if constexpr (kConfig.by_sequence) {
      ptx::tma_load_before(rows.end, to, map, full, column, rows.first, head, batch, priority);
    } else {
      ptx::tma_load(to, map, full, column, rows.first, head, batch, priority);
    }
  }

  __device__ __forceinline__ void write_step(shared::Step step) const {
    ptx::store_word(memory_.step(ptx::slot_of(k_)), step);
  }
  __device__ __forceinline__ void write_origin() const {
    const int q_first = ptx::load_word(item() + shared::kItemQTile) * kConfig.queries();
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(memory_.origin(tile_ - 1)), "r"(q_first),
                 "r"(ptx::load_word(item() + shared::kItemHead)), "r"(ptx::load_word(item() + shared::kItemBatch)),
                 "r"(kNaturalSafely<kConfig> ? next_ : next_ & ~kSafely)
                 : "memory");
    if constexpr (kConfig.by_sequence) {
      asm volatile(
          "{\n"
          ".reg .b32 word<4>;\n"
          "ld.shared.v4.b32 {word0, word1, word2, word3}, [%1];\n"
          "st.shared.v4.b32 [%0], {word0, word1, word2, word3};\n"
          "}" ::"r"(memory_.sequence(tile_ - 1)),
          "r"(item() + kSequence)
          : "memory");
    }
    if constexpr (kConfig.stores_mask()) {
      ptx::store_word(memory_.mask_words_at(tile_ - 1), ptx::load_word(memory_.item_words_at(tile_ - 1)));
    }
    if constexpr (kConfig.fp8()) {
      const ptx::Address from = item() + static_cast<unsigned>(shared::item_factors(kConfig));
      const ptx::Address to = memory_.factors(tile_ - 1);
#pragma unroll(kConfig.packs() ? 1 : 2)
      for (unsigned i = 0; i < sizeof(shared::HeadFactors) * kConfig.heads(); i += 4) {
        ptx::store_word(to + i, ptx::load_word(from + i));
      }
    }
    if constexpr (kConfig.packs()) {
      const int end = (ptx::load_word(item() + shared::kItemKvHead) + 1) * params_.group;
      ptx::store_word(memory_.heads_end(tile_ - 1),
                      min(ptx::load_word(item() + shared::kItemHead) + kConfig.heads(), end));
    }
    if constexpr (kConfig.sinks) {
#pragma unroll 1
      for (int i = 0; i < kConfig.heads(); ++i) {
        ptx::store_word(memory_.sink(tile_ - 1) + 4 * i, ptx::load_word(memory_.item_sink(tile_ - 1) + 4 * i));
      }
    }
  }

  static constexpr unsigned kSequence = sizeof(shared::WorkItem);  // where an item's sequence stands

  const Memory& memory_;
  const ptx::TensorMap &q_map_, &k_map_, &v_map_;
  const Params& params_;
  BufferRing k_{1}, v_{1};
  unsigned tile_ = 0;     // number of the next tile: tiles begun
  unsigned answers_ = 0;  // of the tile source
  int next_ = kNoTile;    // the last of them
  int pending_ = -1;      // kItemSlots * block + the slot of its tile's item: values yet to be loaded; -1: none
};

}  // namespace heddle
