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
  /// Rows of a block that follow each other are found from the thread's first one, where two places of each would take
  /// registers that kernels with lengths on the device lack.
  static constexpr bool kStrides =
      (kFirst > 0 || kConfig.takes_turns()) && (kConfig.page_rows == 0 || kConfig.blocks_in_pages());
  static constexpr int kBlock = kConfig.block_keys();
  /// Threads that copy a block's rows: those that share a ring; or a warpgroup, where each copies columns of its own.
  static constexpr int kThreads = kConfig.takes_turns() ? 128 : kConfig.ring_waves() * 32;
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
      if (!kStrides || i == 0) rows_[i] = behind(source.row(key < last ? key : last), chunk * 16);
      const bool is_valid = key < end && key >= begin;
      if constexpr (kStrides) {
        flags_ = (i == 0 ? kAny : flags_) | (is_valid ? 1U << i : 0U);
      } else {
        valid_[i] = is_valid ? 16 : 0;
      }
    }
    if constexpr (kStrides) strides_ = source.strides();
    any_ = true;
  }
  /// For no block.
  __device__ __forceinline__ void begin_none() {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) valid_[i] = 0;
    flags_ = 0;
#pragma unroll
    for (Row& row : rows_) row = Row{};
    any_ = false;
  }
  /// Asks for a panel of the block at `to`.
  __device__ __forceinline__ void ask(ptx::SharedAddress to, int panel) const { ask(to, panel, panel, false); }
  /// Asks for panel `lower`, or for `upper`.
  __device__ __forceinline__ void ask(ptx::SharedAddress to, int lower, int upper, bool is_upper) const {
    const int own = thread() / 8, chunk = thread() % 8;
    const ptx::SharedAddress at = to + place(own, chunk) + (is_upper ? upper : lower) * panel_bytes(kBlock);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const char* const from = is_upper ? place_of(i, upper * 128) : place_of(i, lower * 128);
      ptx::copy_async_of_line(at + i * (kRowsAtOnce * 128), from, valid(i), any());
    }
  }

 private:
  static constexpr unsigned kAny = 1U << 31;
  __device__ __forceinline__ bool any() const { return kStrides ? (flags_ & kAny) != 0 : any_; }
  __device__ __forceinline__ int valid(int i) const {
    if constexpr (kStrides) return there(i) * 16;
    return valid_[i];
  }
  /// kStrides: 1 for a row of the block, 0 for none.
  __device__ __forceinline__ int there(int i) const { return static_cast<int>(flags_ >> i & 1U); }
  /// Byte `at` of the thread's row i; of a row that is not there, of its first one. (A product: choosing between two
  /// distances takes a register more.)
  __device__ __forceinline__ const char* place_of(int i, int at) const {
    if constexpr (kStrides) {
      const long long stride = at < kFirst ? strides_.first : strides_.rest;
      return byte_of(rows_[0], at) + there(i) * (i * kRowsAtOnce * stride * kConfig.kv_element_bytes());
    } else {
      return byte_of(rows_[i], at);
    }
  }
  /// Among kThreads.
  __device__ __forceinline__ static int thread() { return WarpOfThreads::thread() % kThreads; }

  Row rows_[kStrides ? 1 : kRounds];
  RowStrides strides_;  // kStrides
  int valid_[kRounds];
  bool any_;
  unsigned flags_;  // kStrides: instead of both
};

}  // namespace heddle::portable
