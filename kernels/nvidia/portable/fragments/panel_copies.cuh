// Rows of keys on their way into shared memory as wgmma reads them: panels of 64 columns, [panels][keys][128 bytes], in
// the 128-byte swizzle.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "portable/fragments/warp.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

template <auto kConfig>
class PanelCopies {
  static constexpr int kBlock = kConfig.block_keys(), kPanels = kConfig.qk_columns() / 64;
  /// Eight threads copy a line of a row.
  static constexpr int kRowsAtOnce = kConfig.threads() / 8, kRounds = kBlock / kRowsAtOnce;
  static_assert(!kConfig.by_warpgroups() || (kConfig.qk_dim % 64 == 0 && kConfig.kv_bytes == 16 && kRounds > 0 &&
                                             kBlock % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0));

 public:
  /// Bytes from a panel of `rows` rows to the next one.
  static constexpr int panel_bytes(int rows) { return rows * 128; }
  /// Where 16 bytes of a row stand in its panel.
  __device__ __forceinline__ static int place(int row, int chunk) { return row * 128 + ((chunk ^ row % 8) * 16); }

  /// Rows `first` and on of the keys; those before `begin` and from `end` on become 0.
  template <class Source>
  __device__ __forceinline__ static void ask(const Source& source, ptx::SharedAddress to, int first, int end,
                                             int begin) {
    const int own = WarpOfThreads::thread() / 8, chunk = WarpOfThreads::thread() % 8, last = end > 0 ? end - 1 : 0;
    // Entries of a page table are all read before the first copy: the compiler moves no read past one.
    const char* rows[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int key = first + own + i * kRowsAtOnce;
      rows[i] = source.row(key < last ? key : last) + chunk * 16;
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = own + i * kRowsAtOnce, key = first + row;
      const int valid = key < end && key >= begin ? 16 : 0;
      const ptx::SharedAddress at = to + place(own, chunk) + i * (kRowsAtOnce * 128);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::copy_async_of_line(at + panel * panel_bytes(kBlock), rows[i] + panel * 128, valid);
      }
    }
  }
};

}  // namespace heddle::portable
