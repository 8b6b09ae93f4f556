// Rows of keys and values on their way into shared memory, and rows of queries: by cp.async, or through registers where
// addresses are odd.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "portable/fragments/split_rows.cuh"
#include "portable/fragments/warp.cuh"
#include "ptx/mma_sync.cuh"

namespace heddle::portable {

template <auto kConfig>
class RowCopies {
  static constexpr int kBlock = kConfig.block_keys();
  /// Threads that copy a block, and the thread's number among them.
  static constexpr int kThreads = 32 * (kConfig.own_blocks ? kConfig.ring_waves() : kConfig.waves());
  __device__ __forceinline__ static int copier() {
    if constexpr (kConfig.own_blocks && kConfig.ring_waves() == 1) return WarpOfThreads::lane();
    return kConfig.own_blocks ? WarpOfThreads::thread() % kThreads : WarpOfThreads::thread();
  }

  /// Blocks may begin before the keys that count.
  static constexpr bool kBefore = kConfig.bounded && kConfig.run_step() > 1;

 public:
  /// Rows `first` and on of a tensor of keys or values; those before `begin` (kBefore) and from `end` on, and columns
  /// that it lacks, become 0. Those of 8 bits are copied as they are.
  template <int kDim, int kColumns, shared::Fp8 = shared::Fp8::none, class Source>
  __device__ __forceinline__ static void ask(const Source& source, ptx::SharedAddress to, int pitch, int first, int end,
                                             int begin = 0) {
    if constexpr (kConfig.blocks_in_two_pages()) {
      constexpr int kHalf = kBlock / 2;
      static_assert(kHalf % 8 == 0);  // rows of both halves are swizzled alike
      ask_rows<kDim, kColumns, kHalf>(source.halves[0], to, pitch, first, end, begin);
      ask_rows<kDim, kColumns, kHalf>(source.halves[1], to + kHalf * pitch, pitch, first + kHalf, end, begin);
    } else {
      ask_rows<kDim, kColumns, kBlock>(source, to, pitch, first, end, begin);
    }
  }

  /// Chunks `own`, own + kTogether, ... of a row of elements of kElement bytes at an address that kBytes divide,
  /// swizzled by `turn`.
  template <int kDim, int kColumns, int kElement, int kBytes, int kTogether, class Row>
  __device__ __forceinline__ static void copy_row(ptx::SharedAddress to, const Row& from, bool there, int own,
                                                  int turn) {
    constexpr int kChunk = chunk_of(kBytes), kChunks = kElement * kColumns / kChunk;
    // The row's chunks are there, or it is not there at all. (Kernels of few rows gain nothing, and some would spill.)
    constexpr bool kFewRows = kConfig.own_blocks || (kConfig.blocks == shared::StepBlocks::keys_and_values &&
                                                     (kConfig.rings() || kConfig.key_waves > 1));
    constexpr bool kWholeChunks = !kFewRows && kDim == kColumns && kChunk == kBytes;
#pragma unroll kCopiesAtOnce < kBytes>
    for (int first = 0; first < kChunks; first += kTogether) {
      const int chunk = first + own;
      if (kChunks % kTogether != 0 && chunk >= kChunks) break;
      const int at = chunk * kChunk, left = !there ? 0 : kWholeChunks ? kChunk : kElement * kDim - at;
      if constexpr (kChunk == 2) {
        ptx::store_half(to + (at ^ turn), two_bytes<kElement, kBytes>(from, at, left));
      } else {
        const char* const chunk_begin = byte_of_if(left > 0, from, at);
        const int valid = left < 0 ? 0 : left < kBytes ? left : kBytes;
        if constexpr (kConfig.own_blocks && kBytes == 16 && kElement * kDim % 128 == 0) {
          ptx::copy_async_of_line(to + (at ^ turn), chunk_begin, valid);
        } else {
          ptx::copy_async<kBytes>(to + (at ^ turn), chunk_begin, valid);
        }
      }
    }
  }

 private:
  template <int kDim, int kColumns, int kRows, class Source>
  __device__ __forceinline__ static void ask_rows(const Source& source, ptx::SharedAddress to, int pitch, int first,
                                                  int end, int begin) {
    if (Source::kLinear && first + kRows <= end && (!kBefore || begin <= first)) {
      ask_rows<kDim, kColumns, kRows, true>(source, to, pitch, first, end, begin);
    } else {
      ask_rows<kDim, kColumns, kRows, false>(source, to, pitch, first, end, begin);
    }
  }

  static constexpr int chunk_of(int bytes) { return bytes == 1 ? 2 : bytes; }

  /// Two bytes from `at` on. The first `left` of them are there.
  template <int kElement, int kBytes, class Row>
  __device__ __forceinline__ static unsigned short two_bytes(const Row& from, int at, int left) {
    const auto both = [&] { return *reinterpret_cast<const unsigned short*>(byte_of(from, at)); };
    if constexpr (kElement == 2) return left > 0 ? both() : 0;
    if (kBytes >= 2 && left >= 2) return both();
    const auto byte = [&](int i) { return *reinterpret_cast<const unsigned char*>(byte_of(from, at + i)); };
    const unsigned low = left > 0 ? byte(0) : 0, high = left > 1 ? byte(1) : 0;
    return static_cast<unsigned short>(high << 8 | low);
  }

  /// kWhole: the tensor has all of them.
  template <int kDim, int kColumns, int kRows, bool kWhole, class Source>
  __device__ __forceinline__ static void ask_rows(const Source& source, ptx::SharedAddress to, int pitch, int first,
                                                  int end, int begin) {
    constexpr int kElement = kConfig.kv_element_bytes(), kChunks = kElement * kColumns / chunk_of(kConfig.kv_bytes);
    // A thread's chunks are of one column where they can be.
    constexpr int kBeside = kThreads % kChunks == 0 || (kChunks > kThreads && !kConfig.deep()) ? kChunks : 1;
    constexpr int kTogether = kConfig.wide() ? kChunks & -kChunks : kBeside == 1 ? beside(kChunks, kThreads) : kBeside;
    constexpr int kRounds = (kRows * kTogether + kThreads - 1) / kThreads;
    const auto copy = [&](int round, auto&& row_at) {
      const int own = round * kThreads + copier(), row = own / kTogether;
      if (kRows * kTogether % kThreads != 0 && row >= kRows) return;
      const int turn = shared::is_swizzled(pitch) ? shared::turn_of(row) : 0;
      const bool there = kWhole || (first + row < end && (!kBefore || first + row >= begin));
      copy_row<kDim, kColumns, kElement, kConfig.kv_bytes, kTogether>(to + row * pitch, row_at(first + row), there,
                                                                      own % kTogether, turn);
    };
    const int last = end > 0 ? end - 1 : 0;
    const auto inside = [&](int key) { return kWhole || key < last ? key : last; };
    if constexpr (kWhole && Source::kLinear && kThreads % kTogether == 0) {
      auto steady = source.row(first + copier() / kTogether);
#pragma unroll kCopiesAtOnce < kConfig.kv_bytes>
      for (int i = 0; i < kRounds; ++i) {
        copy(i, [&](int) { return steady; });
        steady = source.below(steady, kThreads / kTogether);
      }
    } else if constexpr ((kConfig.rings() || kConfig.wide()) && !Source::kLinear && kConfig.kv_bytes >= 8) {
      // The compiler moves no read of the table before a copy: so some rounds' entries are read before their copies.
      constexpr int kMost = kConfig.own_blocks && kColumns > 128 ? 4 : 8;
      constexpr int kAtOnce = kRounds < kMost ? kRounds : kMost;
#pragma unroll 1
      for (int round = 0; round < kRounds; round += kAtOnce) {
        int pages[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          pages[i] = source.page_of(inside(first + ((round + i) * kThreads + copier()) / kTogether));
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (kRounds % kAtOnce != 0 && round + i >= kRounds) break;
          copy(round + i, [&](int key) { return source.row(inside(key), pages[i]); });
        }
      }
    } else {
#pragma unroll kCopiesAtOnce < kConfig.kv_bytes>
      for (int i = 0; i < kRounds; ++i) copy(i, [&](int key) { return source.row(inside(key)); });
    }
  }
  /// The largest power of two of threads that share a row.
  static constexpr int beside(int chunks, int threads) {
    int most = 1;
    while (2 * most <= chunks && threads % (2 * most) == 0) most *= 2;
    return most;
  }

  /// Copies that the compiler may begin together: few beside the many sums of wide(), deep(), f64 or outer products.
  /// Rows at addresses that 8 bytes do not divide take many copies, whose addresses, and halves on their way, would not
  /// fit in the registers.
  template <int kBytes>
  static constexpr int kCopiesAtOnce =
      kBytes >= 8 && !kConfig.wide() && !kConfig.deep() && !kConfig.shape().of_many_rows && kConfig.element_bytes() < 8
          ? 256
          : 4;
};

}  // namespace heddle::portable
