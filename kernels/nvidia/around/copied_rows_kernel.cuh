// Copies rows to where TMA takes them (shared/copied_rows.h). The work is cut into shares of up to 64 rows of one head;
// a CTA takes one share after the other.
#pragma once

#include "mods/bits.cuh"
#include "shared/copied_rows.h"

namespace heddle::copied_rows {

using shared::CopiedRows;
using shared::CopiedRowsParams;

/// One store of a thread.
struct __align__(16) Chunk {
  unsigned words[4];
};

/// The first `bytes` from there on, 16 or less, and zeros. kWidth divides the address and `bytes`.
template <int kWidth>
__device__ __forceinline__ Chunk load(const char* from, int bytes) {
  if constexpr (kWidth == 16) {
    return *reinterpret_cast<const Chunk*>(from);
  } else {
    using Word = ptx::Bits<kWidth>;
    constexpr int kOfWord = 4 / kWidth, kCount = 16 / kWidth;
    Chunk chunk = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const unsigned word = i * kWidth < bytes ? reinterpret_cast<const Word*>(from)[i] : 0;
      chunk.words[i / kOfWord] |= word << 8 * kWidth * (i % kOfWord);
    }
    return chunk;
  }
}

/// `count` rows of a head of a sequence, from `first` on.
struct Share {
  int sequence, head, first, count;
};
__device__ __forceinline__ Share share_of(const CopiedRowsParams& params, const CopiedRows& tensor, long long number) {
  const long long of_head = shared::copied_shares_of_head(tensor.rows), heads = number / of_head;
  Share share = {.sequence = static_cast<int>(heads / tensor.heads),
                 .head = static_cast<int>(heads % tensor.heads),
                 .first = static_cast<int>(number % of_head) * shared::kCopyRows,
                 .count = 0};
  int rows = tensor.rows;
  if (params.sequences != nullptr && tensor.span != shared::CopiedSpan::all) {
    const shared::SequenceSpan& span = params.sequences[share.sequence];
    rows = min(rows, tensor.span == shared::CopiedSpan::keys ? span.kv_len : span.q_len);
  }
  share.count = min(rows - share.first, shared::kCopyRows);
  return share;
}

/// Address of a row's first byte. Entries of the table count as the nearest page that there is, as in forward_sm90.
__device__ __forceinline__ const char* row_address(const CopiedRowsParams& params, const CopiedRows& tensor,
                                                   const Share& share, int row) {
  long long at = share.head * tensor.from_step[1];
  if (tensor.paged) {
    const shared::PageTable& table = params.page_table;
    const int number = row / params.page_rows;
    const long long before = table.starts.data != nullptr ? shared::first_entry(table, share.sequence) * table.stride[1]
                                                          : share.sequence * table.stride[0];
    const int entry = table.data[before + number * table.stride[1]];
    at += min(max(entry, 0), table.pages - 1) * tensor.from_step[0] +
          (row - number * params.page_rows) * tensor.from_step[2];
  } else {
    at += share.sequence * tensor.from_step[0] + row * tensor.from_step[2];
  }
  return tensor.from + at;
}

/// By all threads of the CTA: neighbours take neighbouring chunks, several at a time.
template <int kWidth>
__device__ __forceinline__ void copy(const CopiedRowsParams& params, const CopiedRows& tensor, const Share& share) {
  constexpr int kAtOnce = kWidth == 16 ? 4 : 2;
  const int chunks = static_cast<int>(tensor.to_row_step) / 16;  // of a row
  const int rows_on = shared::kCopyThreads / chunks, chunks_on = shared::kCopyThreads % chunks;
  const int thread = static_cast<int>(threadIdx.x);
  int row = thread / chunks, number = thread % chunks;
  char* const to =
      tensor.to + ((static_cast<long long>(share.sequence) * tensor.heads + share.head) * tensor.rows + share.first) *
                      tensor.to_row_step;
  while (row < share.count) {
    Chunk moved[kAtOnce];
    char* targets[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      targets[i] = nullptr;
      if (row < share.count) {
        const char* from = row_address(params, tensor, share, share.first + row) + 16 * number;
        moved[i] = load<kWidth>(from, tensor.row_bytes - 16 * number);
        targets[i] = to + row * tensor.to_row_step + 16 * number;
      }
      row += rows_on;
      number += chunks_on;
      if (number >= chunks) number -= chunks, ++row;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (targets[i] != nullptr) *reinterpret_cast<Chunk*>(targets[i]) = moved[i];
    }
  }
}

}  // namespace heddle::copied_rows

extern "C" __global__ void __launch_bounds__(heddle::shared::kCopyThreads)
    copy_rows(const __grid_constant__ heddle::shared::CopiedRowsParams params) {
  using namespace heddle::copied_rows;
  for (long long number = blockIdx.x; number < params.shares; number += gridDim.x) {
    long long own = number;
    const CopiedRows* tensor = params.tensors;
    for (; own >= tensor->shares; ++tensor) own -= tensor->shares;
    const Share share = share_of(params, *tensor, own);
    switch (tensor->width) {
      case 16:
        copy<16>(params, *tensor, share);
        break;
      case 8:
      case 4:
        copy<4>(params, *tensor, share);
        break;
      case 2:
        copy<2>(params, *tensor, share);
        break;
      default:
        copy<1>(params, *tensor, share);
    }
  }
}
