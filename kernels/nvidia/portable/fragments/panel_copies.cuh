// Rows of keys, or of values, on their way into shared memory as wgmma reads them: panels of 64 columns,
// [panels][keys][128 bytes], in the 128-byte swizzle.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "portable/fragments/split_rows.cuh"
#include "portable/fragments/warp.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

/// The thread's copies of a block of `kDim` columns, which it may ask for a panel at a time. The first kFirst bytes of
/// rows stand apart from the others; 0: they do not.
template <auto kConfig, int kDim = kConfig.qk_dim, int kFirst = kConfig.k_first_bytes()>
class PanelCopies {
  using Row = typename RowPlace<kFirst>::Type;
  static_assert(kFirst % 128 == 0);  // a panel is one place's
  static constexpr int kBlock = kConfig.block_keys();
  static constexpr int kThreads = kConfig.ring_waves() * 32;  // that share a ring
  /// Eight threads copy a line of a row.
  static constexpr int kRowsAtOnce = kThreads / 8, kRounds = kBlock / kRowsAtOnce;
  static_assert(!kConfig.by_warpgroups() || (kDim % 64 == 0 && kConfig.kv_bytes == 16 && kRounds > 0 &&
                                             kBlock % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0));

 public:
  static constexpr int kPanels = kDim / 64;
  /// Bytes from a panel of `rows` rows to the next one.
  static constexpr int panel_bytes(int rows) { return rows * 128; }
  /// Where 16 bytes of a row stand in its panel.
  __device__ __forceinline__ static int place(int row, int chunk) { return row * 128 + ((chunk ^ row % 8) * 16); }

  /// For rows `first` and on of the keys; those before `begin` and from `end` on become 0. Entries of a page table are
  /// all read here: the compiler moves no read past a copy.
  template <class Source>
  __device__ __forceinline__ void begin(const Source& source, int first, int end, int begin) {
    const int own = thread() / 8, chunk = thread() % 8, last = end > 0 ? end - 1 : 0;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int key = first + own + i * kRowsAtOnce;
      rows_[i] = behind(source.row(key < last ? key : last), chunk * 16);
      valid_[i] = key < end && key >= begin ? 16 : 0;
    }
    any_ = true;
  }
  /// For no block.
  __device__ __forceinline__ void begin_none() {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) rows_[i] = Row{}, valid_[i] = 0;
    any_ = false;
  }
  /// Asks for a panel of the block at `to`, if `asks`.
  __device__ __forceinline__ void ask(ptx::SharedAddress to, int panel, bool asks) const {
    const int own = thread() / 8, chunk = thread() % 8;
    const ptx::SharedAddress at = to + place(own, chunk) + panel * panel_bytes(kBlock);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      ptx::copy_async_of_line(at + i * (kRowsAtOnce * 128), byte_of(rows_[i], panel * 128), valid_[i], any_ && asks);
    }
  }

 private:
  /// Among those that share the ring.
  __device__ __forceinline__ static int thread() { return WarpOfThreads::thread() % kThreads; }

  Row rows_[kRounds];
  int valid_[kRounds];
  bool any_;
};

}  // namespace heddle::portable
