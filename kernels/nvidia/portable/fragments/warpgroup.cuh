// Fragments of Hopper's tensor cores as four warps drive them together (wgmma): 64 rows, 16 of each warp. Rows without
// a query are zeros. Two warpgroups have keys each, or, of keys that sequences share (shared_key_blocks.cuh), rows
// each. If values are the first columns of the keys (kConfig.wide()), both warpgroups share a block: each multiplies
// all queries by its half of the keys, then all weights by its half of the columns. Else each has blocks of its own,
// and sums of all columns. Keys, values and queries stand in shared memory in panels (panel_copies.cuh), weights in
// registers. An accumulator's rows and columns are a warp's own as in mma.sync, so scores, masks and states are those
// of MmaFragments. f16 and bf16.
#pragma once

#include "portable/fragments/mma.cuh"
#include "portable/fragments/panel_blocks.cuh"
#include "portable/fragments/shared_key_blocks.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/warpgroup_products.cuh"

namespace heddle::portable {

template <auto kConfig>
struct WarpgroupFragments : MmaFragments<kConfig> {
  using Base = MmaFragments<kConfig>;
  using Base::kF16, Base::lane, Base::wave;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);
  static constexpr int kKeys = 8, kOuts = 8, kOwnRows = 2, kOwnKeys = 2, kOwnOuts = 2, kOutRun = 2;
  static_assert(!kConfig.converts() && kConfig.row_fragments == 1 && kConfig.q_bytes == 16 &&
                (!kConfig.wide() || kConfig.qk_columns() > 128));
  static_assert(kConfig.shares_alone() ? kConfig.row_waves % 4 == 0 && kConfig.key_waves == 1
                                       : kConfig.row_waves == 4 && kConfig.key_waves == 2);

  static __device__ __forceinline__ int own_key(int c) { return lane() % 4 * 2 + c; }
  static __device__ __forceinline__ int own_out(int c) { return own_key(c); }

  /// The registers of a product follow each other as those of fragments side by side do.
  using Scores = OwnElements<float, kOwnRows, kOwnKeys>;
  using Out = Scores;
  static __device__ __forceinline__ void clear(Scores& s) {
#pragma unroll
    for (int i = 0; i < kOwnRows * kOwnKeys; ++i) s.x[i / kOwnKeys][i % kOwnKeys] = 0;
  }
  static constexpr bool kCopiesQueries = true;
  struct Queries {};
  using SharedBlocks = SharedKeyBlocks<kConfig>;

  class Stream : public PanelBlocks<kConfig> {
    using Copies = PanelCopies<kConfig>;
    using Blocks = PanelBlocks<kConfig>;

   public:
    __device__ __forceinline__ explicit Stream(char* memory) : Blocks(memory) {}

    /// Asks for the queries. `row(i)`: where that of the thread's row i is; null: there is none. The four threads of a
    /// row, and those of the other warpgroup, bring a part of it each. A barrier of all waves.
    template <class Row>
    __device__ __forceinline__ void ask_queries(Row&& row) const {
      struct alignas(16) Chunk {
        unsigned x[4];
      };
      const int chunk = wave() / kConfig.row_waves * 4 + lane() % 4;
#pragma unroll 1
      for (int r = 0; r < kOwnRows; ++r) {
        const auto from = row(r);
        const int to = kMemory.q + Copies::place(wave() % kConfig.row_waves * 16 + Base::own_row(r), chunk);
        if (from == nullptr) {
#pragma unroll
          for (int i = 0; i < kPanels; ++i) {
            *reinterpret_cast<Chunk*>(ptx::dynamic_memory() + to + i * Copies::panel_bytes(kConfig.rows())) = {};
          }
        } else {
#pragma unroll
          for (int i = 0; i < kPanels; ++i) {
            ptx::gather(memory_ + to + i * Copies::panel_bytes(kConfig.rows()),
                        reinterpret_cast<unsigned long long>(byte_of(from, i * 128 + chunk * 16)), 16);
          }
        }
      }
      ptx::arrive_behind_copies(Blocks::queries_arrival());
      ptx::fence_for_tma();
      WarpOfThreads::barrier();
    }
    /// Waits until they have arrived. The thread's products may read them then.
    __device__ __forceinline__ void queries_arrive() {
      ptx::barrier_wait(Blocks::queries_arrival(), parity_);
      ptx::fence_for_tma();
      parity_ ^= 1;
    }

    /// Where queries and the block's keys are, as descriptors have it.
    __device__ __forceinline__ unsigned queries() const { return ptx::matrix_at(memory_ + kMemory.q); }
    __device__ __forceinline__ unsigned keys() const { return ptx::matrix_at(base() + kMemory.k + read_); }
    /// wide(): of the block at `at`, which has been read as keys.
    __device__ __forceinline__ unsigned values(int at) const {
      return ptx::matrix_at(base() + (kConfig.wide() ? kMemory.k : kMemory.v) + at);
    }
    __device__ __forceinline__ unsigned values() const { return values(read_); }
    /// takes_turns(): the panel of weights, [rows][128 bytes].
    __device__ __forceinline__ ptx::SharedAddress weights() const { return memory_ + kMemory.weights; }
    /// The panel, and what else this warpgroup has left, is for the other one.
    __device__ __forceinline__ void pass_weights() const {
      ptx::fence_for_tma();
      ptx::arrive_at<256>(kPassed + Blocks::warpgroup());
    }
    /// Waits until the other warpgroup has passed it.
    __device__ __forceinline__ void await_weights() const { ptx::barrier_of<256>(kPassed + 1 - Blocks::warpgroup()); }

   private:
    static constexpr int kPassed = Blocks::kRead + 2;
    using Blocks::kMemory, Blocks::memory_, Blocks::base, Blocks::read_;
    unsigned parity_ = 0;  // of the queries
  };

  /// S = Q K^T for the keys of the block, in flight until await_scores().
  /// `Keys`: a Stream, or what has the same queries() and keys().
  template <int kKeyFragments, class Keys>
  static __device__ __forceinline__ void begin_scores(Scores (&s)[1][kKeyFragments], const Keys& stream) {
    static_assert(kKeyFragments == 4 || kKeyFragments == 8);
    float(&sums)[4 * kKeyFragments] = registers_of<kKeyFragments>(s);
    const unsigned q = stream.queries(), k = stream.keys();
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * kPanels; ++i) {
      const unsigned columns = i % 4 * ptx::kNextColumns;
      const auto of_q = ptx::descriptor(q + i / 4 * next_panel(kConfig.rows()) + columns),
                 of_k = ptx::descriptor(k + i / 4 * next_panel(kConfig.block_keys()) + columns);
      if constexpr (kKeyFragments == 4) {
        ptx::product_of_32<kF16>(sums, of_q, of_k, i > 0);
      } else {
        ptx::product_of_64<kF16>(sums, of_q, of_k, i > 0);
      }
    }
    ptx::wgmma_commit();
  }
  /// Waits until at most kLater groups of later products are in flight.
  template <int kLater = 0, int kKeyFragments>
  static __device__ __forceinline__ void await_scores(Scores (&s)[1][kKeyFragments]) {
    ptx::wgmma_wait<kLater>();
    ptx::touch(registers_of<kKeyFragments>(s));
  }

  static constexpr int kSteps = kConfig.wave_keys() / 16;  // of a wave's keys
  /// P of a wave's keys as it is multiplied.
  struct alignas(16) Weights {
    unsigned a[kSteps][4];
  };
  template <int kKeyFragments>
  static __device__ __forceinline__ void pack(Weights& weights, const Scores (&p)[kKeyFragments]) {
    static_assert(kKeyFragments == 2 * kSteps);
#pragma unroll
    for (int i = 0; i < 2 * kKeyFragments; ++i) {
      const Scores& of_keys = p[i / 2];
      weights.a[i / 4][i % 4] = ptx::pack<kF16>(of_keys.x[i % 2][0], of_keys.x[i % 2][1]);
    }
  }

  /// Leaves the weights of the thread's rows to the other warpgroup. `first`: the first one of the wave's rows.
  static __device__ __forceinline__ void leave_weights(const Weights& weights, const Stream& stream, int first) {
    static_assert(kConfig.block_keys() == 64);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = PanelCopies<kConfig>::place(first + Base::own_row(i % 2), i / 2) + lane() % 4 * 4;
      ptx::store_two(stream.weights() + at, weights.a[i / 4][i % 4]);
    }
  }

  /// O += P V of the block that is read, for the columns from `first` on, in flight until await_values().
  template <int kOutFragments, class Values>
  static __device__ __forceinline__ void begin_values(Out (&o)[1][kOutFragments], const Weights& weights,
                                                      const Values& stream, int first) {
    multiply_values(o, stream.values(), first, [&](float* sums, int step, unsigned long long of_v) {
      if constexpr (kAtOnce<kOutFragments> == 128) {
        ptx::add_product_of_128<kF16>(sums, weights.a[step], of_v);
      } else {
        ptx::add_product_of_64<kF16>(sums, weights.a[step], of_v);
      }
    });
  }
  /// Likewise for the block at `block`, whose weights the other warpgroup has left.
  template <int kOutFragments>
  static __device__ __forceinline__ void begin_values(Out (&o)[1][kOutFragments], const Stream& stream, int block,
                                                      int first) {
    const unsigned p = ptx::matrix_at(stream.weights());
    static_assert(kAtOnce<kOutFragments> == 128);
    multiply_values(o, stream.values(block), first, [&](float* sums, int step, unsigned long long of_v) {
      ptx::add_product_of_128<kF16>(sums, ptx::descriptor(p + step * ptx::kNextColumns), of_v);
    });
  }
  /// Waits until at most kLater groups of later products are in flight.
  template <int kLater = 0, int kOutFragments>
  static __device__ __forceinline__ void await_values(Out (&o)[1][kOutFragments]) {
    ptx::wgmma_wait<kLater>();
    ptx::touch(registers_of<kOutFragments>(o));
  }

 private:
  /// Columns of a product.
  template <int kOutFragments>
  static constexpr int kAtOnce = kOutFragments* kOuts % 128 == 0 ? 128 : 64;
  /// multiply(sums, step, descriptor of V): a product of 16 keys and kAtOnce columns.
  template <int kOutFragments, class Multiply>
  static __device__ __forceinline__ void multiply_values(Out (&o)[1][kOutFragments], unsigned values, int first,
                                                         Multiply&& multiply) {
    constexpr int kColumns = kOutFragments * kOuts, kStep = kAtOnce<kOutFragments>;
    static_assert(kColumns % kStep == 0 && kConfig.wave_keys() == kConfig.block_keys());
    float(&sums)[kColumns / 2] = registers_of<kOutFragments>(o);
    constexpr unsigned kPanel = next_panel(kConfig.block_keys());
    const unsigned v = (values + first / 64 * kPanel) | kPanel << 16;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int column = 0; column < kColumns; column += kStep) {
        const auto of_v = ptx::descriptor(v + i * ptx::kNextRows + column / 64 * kPanel);
        multiply(sums + column / 2, i, of_v);
      }
    }
    ptx::wgmma_commit();
  }
  template <int kCount>
  static __device__ __forceinline__ auto registers_of(Scores (&fragments)[1][kCount]) -> float (&)[4 * kCount] {
    return reinterpret_cast<float(&)[4 * kCount]>(fragments);
  }
  static constexpr int kPanels = kConfig.qk_columns() / 64;
  /// From a panel to the next one, in a descriptor.
  static constexpr unsigned next_panel(int rows) { return static_cast<unsigned>(rows) * (128 / 16); }
};

}  // namespace heddle::portable
