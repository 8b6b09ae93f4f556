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

  /// Tiles [first, last), then those whose row sums left the safe range once more, with the running maximum.
  __device__ __forceinline__ void run(int first, int last) {
    int flags = 0;
    if (first < last) fetch(first);
    for (int item = first; item < last; ++item) {
      load_tile(item, last, item - first, flags);
      if (item + 1 < last) continue;
      finish_list();
      const int repeat = next_repeat();
      if (repeat < 0) break;
      flags = shared::kStepSafe;
      last = first + repeat + 1;
      item = last - 2;  // the loop counts on
      fetch(first + repeat);
    }
    stop();
  }

 private:
  __device__ __forceinline__ int redo(int warp) const {
    int tile;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(tile) : "r"(memory_.redo(0, warp)) : "memory");
    return tile;
  }

  /// The next tile that some warp wants again, each once; -1: none.
  __device__ __forceinline__ int next_repeat() {
    for (; warp_ < 4 * kConfig.warpgroups; ++warp_) {
      const int tile = redo(warp_);
      bool seen = tile < 0;
      for (int other = 0; other < warp_; ++other) seen = seen || redo(other) == tile;
      if (seen) continue;
      ++warp_;
      return tile;
    }
    return -1;
  }

  // A tile, and a run, take half a step to come from memory. So the next tile is asked for when one begins, and a run
  // when the one before it has been loaded; the wait for an empty buffer covers the way.
  __device__ __forceinline__ void fetch(int item) {
    next_ = params_.items[item];
    run_ = params_.runs[next_.first_run];
  }

  __device__ __forceinline__ void load_tile(int number, int last, int index, int flags) {
    const shared::WorkItem item = next_;
    if (number + 1 < last) next_ = params_.items[number + 1];
    const int k_batch = params_.k_batched ? item.batch : 0, v_batch = params_.v_batched ? item.batch : 0;
    const int q_first = item.q_tile * kConfig.rows();
    int r = 0, in_run = 0;
    for (int step = 0; step < item.steps; ++step) {
      ptx::barrier_wait(memory_.k_empty(k_.slot), k_.parity);
      // Not before the wait.
      asm volatile("" : "+r"(run_.begin), "+r"(run_.end), "+r"(run_.flags), "+r"(run_.last_flags)::"memory");
      const int block = run_.begin + in_run;
      int step_flags = flags | (block + 1 == run_.end ? run_.last_flags : run_.flags);
      if ((block + 1) * kConfig.kv_block > params_.kv_len) step_flags |= shared::kStepRagged;
      if (step + 1 == item.steps) {
        step_flags |= item.last_flags | shared::kStepLast | (number + 1 == last ? shared::kStepListEnd : 0);
      }
      if (step == 0) write_place({q_first, item.head, item.batch, index});
      write_step(block << shared::kStepFlagBits | step_flags);
      load_block(memory_.keys(k_.slot), k_map_, memory_.k_full(k_.slot), block, item.kv_head, k_batch);
      k_.advance(kConfig.stages);
      if (step == 0) load_queries(q_first, item.head, params_.q_batched ? item.batch : 0);
      // Values follow one step behind, as they are used.
      load_pending_values();
      pending_ = {true, block, item.kv_head, v_batch};
      ++in_run;
      if (block + 1 == run_.end) {
        in_run = 0;
        if (++r < item.runs) {
          run_ = params_.runs[item.first_run + r];
        } else if (number + 1 < last) {
          run_ = params_.runs[next_.first_run];
        }
      }
    }
  }

  __device__ __forceinline__ void load_queries(int q_first, int head, int batch) {
    for (int w = 0; w < kConfig.warpgroups; ++w) {
      const ptx::Address full = memory_.q_full(q_.slot, w);
      ptx::barrier_wait(memory_.q_empty(q_.slot, w), q_.parity);
      ptx::barrier_arrive_expecting(full, Memory::kQueryBytes);
      for (int panel = 0; panel < kConfig.panels(); ++panel) {
        ptx::tma_load(memory_.queries(q_.slot, w) + panel * 64 * 128, q_map_, full, panel * 64, q_first + 64 * w, head,
                      batch, ptx::kEvictFirst);
      }
    }
    q_.advance(kConfig.q_buffers);
  }

  __device__ __forceinline__ void load_block(ptx::Address to, const ptx::TensorMap& map, ptx::Address full, int block,
                                             int head, int batch) {
    ptx::barrier_arrive_expecting(full, Memory::kBlockBytes);
    for (int panel = 0; panel < kConfig.panels(); ++panel) {
      ptx::tma_load(to + panel * kConfig.kv_block * 128, map, full, panel * 64, block * kConfig.kv_block, head, batch,
                    ptx::kEvictLast);
    }
  }

  __device__ __forceinline__ void load_pending_values() {
    if (!pending_.any) return;
    ptx::barrier_wait(memory_.v_empty(v_.slot), v_.parity);
    load_block(memory_.values(v_.slot), v_map_, memory_.v_full(v_.slot), pending_.block, pending_.head, pending_.batch);
    v_.advance(kConfig.stages);
    pending_.any = false;
  }

  __device__ __forceinline__ void write_step(shared::Step step) const {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(memory_.step(k_.slot)), "r"(step) : "memory");
  }
  __device__ __forceinline__ void write_place(const shared::TilePlace& place) {
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(memory_.place(tile_)), "r"(place.q_first),
                 "r"(place.head), "r"(place.batch), "r"(place.index)
                 : "memory");
    ++tile_;
  }

  /// Until every consumer has finished what it was given.
  __device__ __forceinline__ void finish_list() {
    load_pending_values();
    ptx::barrier_wait(memory_.list_done(), done_parity_);
    done_parity_ ^= 1;
  }

  __device__ __forceinline__ void stop() {
    ptx::barrier_wait(memory_.k_empty(k_.slot), k_.parity);
    write_step(shared::kStepStop);
    ptx::barrier_arrive(memory_.k_full(k_.slot));
  }

  const Memory& memory_;
  const ptx::TensorMap &q_map_, &k_map_, &v_map_;
  const shared::ForwardSm90Params& params_;
  ptx::Ring q_{1}, k_{1}, v_{1};
  shared::WorkItem next_;
  shared::KvRun run_;
  unsigned done_parity_ = 0;
  unsigned tile_ = 0;  // tiles begun
  int warp_ = 0;       // whose wish for a repeat is looked at next
  struct {
    bool any = false;
    int block = 0, head = 0, batch = 0;
  } pending_;
};

}  // namespace heddle
