// The producer: one thread that walks the CTA's tiles and their runs of key blocks, and loads what the consumers read.
#pragma once

#include "pieces/memory.cuh"
#include "ptx/tma.cuh"

namespace heddle {

template <ForwardSm90Config kConfig>
class Producer {
 public:
  using Memory = SharedMemory<kConfig>;

  __device__ __forceinline__ Producer(const Memory& memory, const ptx::TensorMap& q_map, const ptx::TensorMap& k_map,
                                      const ptx::TensorMap& v_map, const shared::ForwardSm90Params& params)
      : memory_(memory), q_map_(q_map), k_map_(k_map), v_map_(v_map), params_(params) {}

  /// The CTA's own tile, which has been asked for, those that it draws, and once more those whose row sums left the
  /// safe range, with the running maximum.
  __device__ __forceinline__ void run() {
    next_ = blockIdx.x < params_.item_count ? static_cast<int>(blockIdx.x) : kNone;
    drained_ = next_ < 0;
    for (;;) {
      if (next_ < 0) {
        load_pending_values();
        if (drained_) break;
        ptx::barrier_wait(memory_.list_done(), 0);
        drained_ = true;
        choose_repeat();
        if (next_ < 0) break;
        ask_for_next();
      }
      load_tile();
    }
    ptx::barrier_wait(memory_.k_empty(k_.slot), k_.parity);
    write_step(shared::kStepStop);
    ptx::barrier_arrive(memory_.k_full(k_.slot));
  }

  /// Asks for what is to be tile number `tile` of this CTA: item number `item` of the list.
  __device__ __forceinline__ static void fetch(const Memory& memory, const shared::ForwardSm90Params& params,
                                               unsigned tile, int item) {
    for (unsigned i = 0; i < sizeof(shared::WorkItem); i += 16) {
      copy_16_bytes(memory.item(tile) + i, reinterpret_cast<const char*>(params.items + item) + i);
    }
  }

 private:
  static constexpr int kNone = -1, kUndecided = -2;
  static constexpr int kAgain = 1 << 30;  // a tile that has been computed, and is to be safely
  static_assert(kAgain >= shared::kMaxTiles);

  __device__ __forceinline__ static void copy_16_bytes(ptx::Address to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  }
  __device__ __forceinline__ static void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
  __device__ __forceinline__ static int load_word(ptx::Address from) {
    int word;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
  }

  __device__ __forceinline__ static void store_word(ptx::Address to, int word) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
  }

  /// Of the tiles that the end of the list kept from being repeated, the first is next.
  __device__ __forceinline__ void choose_repeat() {
    next_ = kNone;
#pragma unroll 1
    for (unsigned i = 0; i < shared::kTilePlaces && next_ < 0; ++i) take_repeat(tile_ + i);
  }
  /// Whether some warp wants the tile again whose place number `tile` is to take. Then it is next.
  __device__ __forceinline__ bool take_repeat(unsigned tile) {
    if (load_word(memory_.redo(tile)) == 0) return false;
    store_word(memory_.redo(tile), 0);
    next_ = load_word(memory_.place(tile) + kItemOfPlace) | kAgain;
    return true;
  }

  // While the last steps of a tile are loaded the next one is chosen, then asked for: not earlier, so that a CTA that
  // is held up draws no tile that another could begin; and not later, since both take half a step.
  __device__ __forceinline__ void choose_next() {
    if (drained_) {
      choose_repeat();
    } else if (!take_repeat(tile_)) {
      next_ = params_.item_count > gridDim.x ? number_of(draw()) : kNone;
    }
  }
  __device__ __forceinline__ void ask_for_next() {
    if (next_ >= 0) fetch(memory_, params_, tile_, next_ & ~kAgain);
  }

  __device__ __forceinline__ shared::TicketWord draw() const {
    shared::TicketWord old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(params_.tickets) : "memory");
    return old;
  }
  /// The tile of a ticket, or kNone. The first of a run to draw finds what others have left.
  __device__ __forceinline__ int number_of(shared::TicketWord drawn) const {
    while (drawn >> shared::kTicketBits != params_.run) {
      shared::TicketWord found;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(params_.tickets) : "memory");
      if (found >> shared::kTicketBits != params_.run) {
        asm volatile("{\n.reg .b64 before;\natom.relaxed.gpu.global.cas.b64 before, [%0], %1, %2;\n}" ::"l"(params_.tickets),
                     "l"(found), "l"(params_.run << shared::kTicketBits)
                     : "memory");
      }
      drawn = draw();
    }
    // Each CTA draws once in vain; whoever does so last leaves the word to the next run.
    const unsigned ticket = static_cast<unsigned>(drawn) & (shared::kMaxTiles - 1);
    if (ticket + 1 == params_.item_count) {
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(params_.tickets), "l"(shared::TicketWord{0}) : "memory");
    }
    const unsigned number = ticket + gridDim.x;
    return number < params_.item_count ? static_cast<int>(number) : kNone;
  }

  // What a tile is stays in shared memory and is read where it is used: registers are few here.
  __device__ __forceinline__ ptx::Address item() const { return memory_.item(tile_ - 1); }

  __device__ __forceinline__ void load_tile() {
    wait_for_copies();
    ++tile_;
    const int q_first = load_word(item() + kQTile) * kConfig.rows();
    write_place({q_first, load_word(item() + kHead), load_word(item() + kBatch), next_ & ~kAgain});
    store_word(item() + kBefore, next_ & kAgain ? shared::kStepSafe : 0);  // has been read
    next_ = kUndecided;
    int block = -1;
    for (int left = load_word(item() + kSteps); left > 0; --left) {
      // The compiler is not to keep every address that follows from the tile's number in a register.
      asm volatile("" : "+r"(tile_));
      if (left <= 2 && next_ == kUndecided) choose_next();
      if (left == 1) ask_for_next();
      ptx::barrier_wait(memory_.k_empty(k_.slot), k_.parity);
      wait_for_copies();
      const bool first = block < 0;
      block = max(block, load_word(item() + kRun));
      const bool last_of_run = block + 1 == load_word(item() + kRun + 4);
      int step_flags = load_word(item() + kBefore) | load_word(item() + kRun + (last_of_run ? 12 : 8));
      if ((block + 1) * kConfig.kv_block > params_.kv_len) step_flags |= shared::kStepRagged;
      if (left == 1) {
        step_flags |= shared::kStepLast | (next_ < 0 ? shared::kStepListEnd : load_word(memory_.item(tile_) + kBefore));
      }
      write_step(block << shared::kStepFlagBits | step_flags);
      load_block(memory_.keys(k_.slot), k_map_, memory_.k_full(k_.slot), block, item(), params_.k_batched);
      k_.advance(kConfig.stages);
      if (first) load_queries();
      // Values follow one step behind, as they are used.
      load_pending_values();
      pending_ = block++ * shared::kItemPlaces + (tile_ - 1) % shared::kItemPlaces;
      if (last_of_run && left > 1) {
        const int run = load_word(item() + kFirstRun) + 1;
        store_word(item() + kFirstRun, run);
        copy_16_bytes(item() + kRun, params_.runs + run);
      }
    }
  }

  /// Of the tile that is loaded, into the buffer of its number.
  __device__ __forceinline__ void load_queries() {
    const unsigned tile = tile_ - 1;
    const int slot = static_cast<int>(tile % kConfig.q_buffers);
    const int q_first = load_word(item() + kQTile) * kConfig.rows(), head = load_word(item() + kHead);
    const int batch = params_.q_batched ? load_word(item() + kBatch) : 0;
#pragma unroll 1
    for (int w = 0; w < kConfig.warpgroups; ++w) {
      const ptx::Address full = memory_.q_full(slot, w);
      ptx::barrier_wait(memory_.q_empty(slot, w), (tile / kConfig.q_buffers + 1) & 1);
      ptx::barrier_arrive_expecting(full, Memory::kQueryBytes);
#pragma unroll 1
      for (int panel = 0; panel < kConfig.panels(); ++panel) {
        ptx::tma_load(memory_.queries(slot, w) + panel * 64 * 128, q_map_, full, panel * 64, q_first + 64 * w, head,
                      batch, ptx::kEvictFirst);
      }
    }
  }

  __device__ __forceinline__ void load_block(ptx::Address to, const ptx::TensorMap& map, ptx::Address full, int block,
                                             ptx::Address item, int batched) {
    const int head = load_word(item + kKvHead), batch = batched ? load_word(item + kBatch) : 0;
    ptx::barrier_arrive_expecting(full, Memory::kBlockBytes);
#pragma unroll 1
    for (int panel = 0; panel < kConfig.panels(); ++panel) {
      ptx::tma_load(to + panel * kConfig.kv_block * 128, map, full, panel * 64, block * kConfig.kv_block, head, batch,
                    ptx::kEvictLast);
    }
  }

  __device__ __forceinline__ void load_pending_values() {
    if (pending_ < 0) return;
    ptx::barrier_wait(memory_.v_empty(v_.slot), v_.parity);
    load_block(memory_.values(v_.slot), v_map_, memory_.v_full(v_.slot),
               pending_ / shared::kItemPlaces, memory_.item(pending_), params_.v_batched);
    v_.advance(kConfig.stages);
    pending_ = -1;
  }

  __device__ __forceinline__ void write_step(shared::Step step) const {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(memory_.step(k_.slot)), "r"(step) : "memory");
  }
  __device__ __forceinline__ void write_place(const shared::TilePlace& place) const {
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(memory_.place(tile_ - 1)), "r"(place.q_first),
                 "r"(place.head), "r"(place.batch), "r"(place.item)
                 : "memory");
  }

  // Offsets in bytes.
  static constexpr unsigned kQTile = __builtin_offsetof(shared::WorkItem, q_tile), kHead = __builtin_offsetof(shared::WorkItem, head),
                            kBatch = __builtin_offsetof(shared::WorkItem, batch), kKvHead = __builtin_offsetof(shared::WorkItem, kv_head),
                            kSteps = __builtin_offsetof(shared::WorkItem, steps),
                            kFirstRun = __builtin_offsetof(shared::WorkItem, first_run),
                            kBefore = __builtin_offsetof(shared::WorkItem, before), kRun = __builtin_offsetof(shared::WorkItem, run),
                            kItemOfPlace = __builtin_offsetof(shared::TilePlace, item);

  const Memory& memory_;
  const ptx::TensorMap &q_map_, &k_map_, &v_map_;
  const shared::ForwardSm90Params& params_;
  ptx::Ring k_{1}, v_{1};
  unsigned tile_ = 0;     // number of the next tile: tiles begun
  int next_ = kNone;              // its item, | kAgain
  bool drained_ = false;          // the list has ended, and all is done
  int pending_ = -1;              // kItemPlaces * block + the place of its tile's item: values yet to be loaded; -1: none
};

}  // namespace heddle
