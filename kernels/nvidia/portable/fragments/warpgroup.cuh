// Fragments of Hopper's tensor cores as four warps drive them together (wgmma), for tiles of values that are the first
// columns of the keys (kConfig.wide()): 64 rows, 16 of each warp. Rows without a query are zeros. Two warpgroups share
// a block of keys: each multiplies all queries by its half of the keys, then all weights by its half of the columns.
// Keys and queries stand in shared memory in panels (panel_copies.cuh), weights in registers. An accumulator's rows and
// columns are a warp's own as in mma.sync, so scores, masks and states are those of MmaFragments. f16 and bf16.
#pragma once

#include "portable/fragments/mma.cuh"
#include "portable/fragments/panel_blocks.cuh"
#include "ptx/warpgroup_products.cuh"

namespace heddle::portable {

template <auto kConfig>
struct WarpgroupFragments : MmaFragments<kConfig> {
  using Base = MmaFragments<kConfig>;
  using Base::kF16, Base::lane, Base::wave;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  static constexpr int kKeys = 8, kOuts = 8, kOwnRows = 2, kOwnKeys = 2, kOwnOuts = 2, kOutRun = 2;
  static_assert(kConfig.wide() && !kConfig.converts() && kConfig.row_waves == 4 && kConfig.row_fragments == 1 &&
                kConfig.key_waves == 2 && kConfig.q_bytes == 16 && kConfig.qk_columns() > 128);

  static __device__ __forceinline__ int own_key(int c) { return lane() % 4 * 2 + c; }
  static __device__ __forceinline__ int own_out(int c) { return own_key(c); }

  /// The registers of a product follow each other as those of fragments side by side do.
  using Scores = OwnElements<float, kOwnRows, kOwnKeys>;
  using Out = Scores;
  static __device__ __forceinline__ void clear(Scores& s) {
#pragma unroll
    for (int i = 0; i < kOwnRows * kOwnKeys; ++i) s.x[i / kOwnKeys][i % kOwnKeys] = 0;
  }
  struct Queries {};

  class Stream : public PanelBlocks<kConfig> {
    using Copies = PanelCopies<kConfig>;
    using Blocks = PanelBlocks<kConfig>;

   public:
    __device__ __forceinline__ explicit Stream(char* memory) : Blocks(memory) {}

    /// `row(i)`: where the query of the thread's row i is; null: there is none. The four threads of a row, and those of
    /// the other warpgroup, bring a part of it each. A barrier of all waves.
    template <class Row>
    __device__ __forceinline__ void load_queries(Queries (&)[1], Row&& row) const {
      struct alignas(16) Chunk {
        unsigned x[4];
      };
      const int chunk = wave() / kConfig.row_waves * 4 + lane() % 4;
#pragma unroll 1
      for (int r = 0; r < kOwnRows; ++r) {
        const char* const from = row(r);
        const int to = kMemory.q + Copies::place(wave() % kConfig.row_waves * 16 + Base::own_row(r), chunk);
        Chunk chunks[kPanels];
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
          chunks[i] = {};
          if (from != nullptr) chunks[i] = *reinterpret_cast<const Chunk*>(from + i * 128 + chunk * 16);
        }
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
          *reinterpret_cast<Chunk*>(ptx::dynamic_memory() + to + i * Copies::panel_bytes(kConfig.rows())) = chunks[i];
        }
      }
      ptx::fence_for_tma();
      WarpOfThreads::barrier();
    }

    /// Where queries and the block's keys are, as descriptors have it.
    __device__ __forceinline__ unsigned queries() const { return ptx::matrix_at(memory_ + kMemory.q); }
    __device__ __forceinline__ unsigned keys() const { return ptx::matrix_at(memory_ + kMemory.k + read_); }

   private:
    using Blocks::kMemory, Blocks::memory_, Blocks::read_;
  };

  /// S = Q K^T for the keys from `key` on, 32 of them, in flight until await_scores(). Meanwhile the panels of the
  /// block that is asked for are copied, if `asks`: the warp would wait for room in the queue of products else.
  template <int kKeyFragments>
  static __device__ __forceinline__ void begin_scores(Scores (&s)[1][kKeyFragments], const Stream& stream, int key,
                                                      bool asks) {
    float(&sums)[16] = registers_of<kKeyFragments>(s);
    constexpr int kLater = 2;  // panels behind the products': pages of the first copies may still be to come
    const unsigned q = stream.queries(), k = stream.keys() + key * (128 / 16);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * kPanels; ++i) {
      if (i % 4 == 0 && i / 4 >= kLater) stream.copy_panel(i / 4 - kLater, asks);
      const unsigned columns = i % 4 * ptx::kNextColumns;
      ptx::product_of_32<kF16>(sums, ptx::descriptor(q + i / 4 * next_panel(kConfig.rows()) + columns),
                               ptx::descriptor(k + i / 4 * next_panel(kConfig.block_keys()) + columns), i > 0);
    }
    ptx::wgmma_commit();
#pragma unroll
    for (int panel = kPanels - kLater; panel < kPanels; ++panel) stream.copy_panel(panel, asks);
  }
  template <int kKeyFragments>
  static __device__ __forceinline__ void await_scores(Scores (&s)[1][kKeyFragments]) {
    ptx::wgmma_wait<0>();
    ptx::touch(registers_of<kKeyFragments>(s));
  }

  /// P of a wave's 32 keys as it is multiplied.
  struct alignas(16) Weights {
    unsigned a[2][4];
  };
  template <int kKeyFragments>
  static __device__ __forceinline__ void pack(Weights& weights, const Scores (&p)[kKeyFragments]) {
    static_assert(kKeyFragments == 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Scores& of_keys = p[i / 2];
      weights.a[i / 4][i % 4] = ptx::pack<kF16>(of_keys.x[i % 2][0], of_keys.x[i % 2][1]);
    }
  }

  /// O += P V of a block, for the columns from `first` on, in flight until await_values().
  template <int kOutFragments>
  static __device__ __forceinline__ void begin_values(Out (&o)[1][kOutFragments],
                                                      const Weights (&weights)[kConfig.key_waves], const Stream& stream,
                                                      int first) {
    constexpr int kColumns = kOutFragments * kOuts, kAtOnce = 128;
    static_assert(kColumns % kAtOnce == 0);
    float(&sums)[kColumns / 2] = registers_of<kOutFragments>(o);
    const unsigned v =
        (stream.keys() + first / 64 * next_panel(kConfig.block_keys())) | next_panel(kConfig.block_keys()) << 16;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kConfig.kv_block / 16; ++i) {
#pragma unroll
      for (int column = 0; column < kColumns; column += kAtOnce) {
        ptx::add_product_of_128<kF16>(
            sums + column / 2, weights[i / 2].a[i % 2],
            ptx::descriptor(v + i * ptx::kNextRows + column / 64 * next_panel(kConfig.block_keys())));
      }
    }
    ptx::wgmma_commit();
  }
  template <int kOutFragments>
  static __device__ __forceinline__ void await_values(Out (&o)[1][kOutFragments]) {
    ptx::wgmma_wait<0>();
    ptx::touch(registers_of<kOutFragments>(o));
  }

 private:
  template <int kCount>
  static __device__ __forceinline__ auto registers_of(Scores (&fragments)[1][kCount]) -> float (&)[4 * kCount] {
    return reinterpret_cast<float(&)[4 * kCount]>(fragments);
  }
  static constexpr int kPanels = kConfig.qk_columns() / 64;
  /// From a panel to the next one, in a descriptor.
  static constexpr unsigned next_panel(int rows) { return static_cast<unsigned>(rows) * (128 / 16); }
};

}  // namespace heddle::portable
