// Blocks of keys that several sequences share, on their way to the warpgroups that have rows each
// (kConfig.shares_alone()).
// Some warps ask TMA for them: each thread for a box, which is rows of one page and 64 columns. (A box takes some 56
// clocks to ask for.) All warpgroups read one ring, and say when they have read a buffer. So a warpgroup waits for
// another one only where the ring is full.
#pragma once

#include "portable/fragments/panel_copies.cuh"
#include "portable/fragments/ring_slot.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace heddle::portable {

template <auto kConfig>
class SharedKeyBlocks {
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  static constexpr int kBlock = kConfig.block_keys(), kBoxRows = kConfig.box_rows(), kBoxesOfPanel = kBlock / kBoxRows;
  static constexpr int kKeyPanels = kConfig.qk_dim / 64, kPanels = kKeyPanels + kConfig.v_dim / 64;
  static constexpr int kPanelBytes = kBlock * 128;
  static_assert(kPanels * kBoxesOfPanel <= 32 && kBoxRows % 8 == 0 && kMemory.stage == kPanels * kPanelBytes);
  using Slot = RingSlot<kConfig.stages, kMemory.stage>;
  using Copies = PanelCopies<kConfig>;

 public:
  /// By all threads, which meet at a barrier.
  __device__ __forceinline__ explicit SharedKeyBlocks(char* memory) : memory_(ptx::shared_address(memory)) {
    if (WarpOfThreads::thread() == 0) {
#pragma unroll
      for (int i = 0; i < kConfig.stages; ++i) {
        ptx::barrier_init(barrier(i), shared::kBringingWaves);
        ptx::barrier_init(barrier(kConfig.stages + i), kConfig.waves());
      }
      ptx::barrier_init(barrier(2 * kConfig.stages), 32 * kConfig.waves());
      ptx::barrier_init_done();
    }
    WarpOfThreads::barrier();
  }

  // The warps that ask, of which each has boxes of every block.
  /// Boxes of different keys in a block, and which one is the thread's.
  static constexpr int kPieces = kBoxesOfPanel;
  __device__ __forceinline__ static int piece() { return box() % kBoxesOfPanel; }
  /// Asks for a block, when its place has been read. `row`, `end`: of the thread's box, as KeyBoxes has them. `keys`,
  /// `values`: the entries of the tensors. `maps`: has `first`, of keys, and `rest`, of values.
  template <class Maps>
  __device__ __forceinline__ void ask(const Maps& maps, int row, int end, int head, int keys, int values) {
    const int i = asked_.at / kMemory.stage;
    ptx::barrier_wait(barrier(kConfig.stages + i), parity_ ^ 1);
    // The whole warp computes these: the number of a wave is an instruction of a warp.
    const int panel = box() / kBoxesOfPanel, first_row = piece() * kBoxRows;
    const int own = (kPanels * kBoxesOfPanel + shared::kBringingWaves - 1 - bringer()) / shared::kBringingWaves;
    if (WarpOfThreads::lane() == 0) ptx::barrier_arrive_expecting(barrier(i), own * (kBoxRows * 128));
    WarpOfThreads::wave_barrier();
    if (WarpOfThreads::lane() < own) {
      const bool is_value = panel >= kKeyPanels;
      const void* const map = is_value ? &maps.rest : &maps.first;
      ptx::tma_load_before(end, memory_ + asked_.at + panel * kPanelBytes + first_row * 128,
                           *reinterpret_cast<const ptx::TensorMap*>(map), barrier(i),
                           (is_value ? panel - kKeyPanels : panel) * 64, row, head, is_value ? values : keys,
                           ptx::kEvictNormal);
    }
    next(asked_);
  }

  // The warpgroups.
  /// Until all of their threads have come.
  __device__ __forceinline__ static void meet() { ptx::barrier_of<32 * kConfig.waves()>(1); }
  /// Asks for the queries. `row(i)`: where that of the thread's row i is; null: there is none. Four threads bring a
  /// row.
  template <class Row>
  __device__ __forceinline__ void ask_queries(Row&& row) const {
    struct alignas(16) Chunk {
      unsigned x[4];
    };
#pragma unroll 1
    for (int r = 0; r < 2; ++r) {
      const char* const from = row(r);
      const int own = WarpOfThreads::wave() * 16 + WarpOfThreads::lane() / 4 + 8 * r;
#pragma unroll
      for (int i = 0; i < 2 * kKeyPanels; ++i) {
        const int chunk = WarpOfThreads::lane() % 4 + i % 2 * 4;
        const int to = kMemory.q + i / 2 * Copies::panel_bytes(kConfig.rows()) + Copies::place(own, chunk);
        if (from == nullptr) {
          *reinterpret_cast<Chunk*>(ptx::dynamic_memory() + to) = {};
        } else {
          ptx::gather(memory_ + to, reinterpret_cast<unsigned long long>(from + i / 2 * 128 + chunk * 16), 16);
        }
      }
    }
    ptx::arrive_behind_copies(barrier(2 * kConfig.stages));
    ptx::fence_for_tma();
  }
  /// Waits until they have arrived. The thread's products may read them then.
  __device__ __forceinline__ void queries_arrive() {
    ptx::barrier_wait(barrier(2 * kConfig.stages), query_parity_);
    ptx::fence_for_tma();
    query_parity_ ^= 1;
  }
  /// Waits until the next block has arrived, which is read from here on.
  __device__ __forceinline__ void arrives() {
    ptx::barrier_wait(barrier(asked_.at / kMemory.stage), parity_);
    read_ = asked_.at;
    next(asked_);
  }
  /// Where the block that is read begins.
  __device__ __forceinline__ int block() const { return read_; }
  /// All products of the wave's threads have read a block.
  __device__ __forceinline__ void is_read(int block) const {
    WarpOfThreads::wave_barrier();
    if (WarpOfThreads::lane() == 0) ptx::barrier_arrive(barrier(kConfig.stages + block / kMemory.stage));
  }
  // Where they are, as descriptors have it.
  __device__ __forceinline__ unsigned queries() const {
    return ptx::matrix_at(memory_ + kMemory.q + WarpOfThreads::wave() / 4 * (64 * 128));
  }
  __device__ __forceinline__ unsigned keys() const { return ptx::matrix_at(memory_ + read_); }
  __device__ __forceinline__ unsigned values() const {
    return ptx::matrix_at(memory_ + read_ + kKeyPanels * kPanelBytes);
  }

 private:
  __device__ __forceinline__ static int bringer() { return WarpOfThreads::wave() - kConfig.waves(); }
  /// The number of the thread's box among those of keys and values.
  __device__ __forceinline__ static int box() { return bringer() + WarpOfThreads::lane() * shared::kBringingWaves; }
  __device__ __forceinline__ ptx::Address barrier(int number) const { return memory_ + kMemory.arrivals + 8 * number; }
  __device__ __forceinline__ void next(Slot& slot) {
    slot.advance();
    if (slot.at == 0) parity_ ^= 1;
  }

  ptx::SharedAddress memory_;
  Slot asked_ = {0};  // or, of warpgroups, the next one to be read
  unsigned parity_ = 0, query_parity_ = 0;
  int read_ = 0;
};

}  // namespace heddle::portable
