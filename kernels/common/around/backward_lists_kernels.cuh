// The lists that a backward walks if sequences' lengths are in the device's memory. Three small kernels run behind
// place_sequences (around/sequences_kernels.cuh), which finds where the sequences stand:
//
//   list_backward_blocks   a CTA a sequence: its blocks of rows. Unused numbers get a block without rows
//   list_backward_tiles    a thread for each tile of the host's list: its queries that are there. Tiles past the
//                          keys of a packed sequence are dropped, unless tiles keep their places; those
//                          of a padded one stay, and store zeros. The tiles that one CTA lists keep
//                          their order; CTAs append in any order
//   fill_backward_gaps     packed: a CTA for the rows between a sequence's end and the next one's begin: zeros
#pragma once

#include "shared/backward_lists.h"

namespace heddle::lists {

/// Rows [first, end) of all heads, by all threads.
__device__ __forceinline__ void fill_rows(const shared::FilledRows& rows, int first, int end) {
  if (rows.data == nullptr) return;
  for (int head = 0; head < rows.heads; ++head) {
    for (int row = first; row < end; ++row) {
      char* to = rows.data + head * rows.stride[0] + row * rows.stride[1];
      for (int i = static_cast<int>(threadIdx.x); i < rows.row_bytes; i += shared::kBackwardListThreads) to[i] = 0;
    }
  }
}

}  // namespace heddle::lists

extern "C" __global__ void __launch_bounds__(heddle::shared::kBackwardListThreads)
    list_backward_blocks(const __grid_constant__ heddle::shared::BackwardListsParams params) {
  using namespace heddle;
  const int sequence = static_cast<int>(blockIdx.x);
  const shared::SequenceSpan span = params.spans[sequence];
  const int first = shared::first_block_of(span.q_begin, sequence, params.padded_blocks);
  const int next = shared::first_block_of(params.spans[sequence + 1].q_begin, sequence + 1, params.padded_blocks);
  for (int number = first + static_cast<int>(threadIdx.x); number < next; number += shared::kBackwardListThreads) {
    params.blocks[number] = shared::row_block_of(params, span, sequence, number - first);
  }
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kBackwardListThreads)
    list_backward_tiles(const __grid_constant__ heddle::shared::BackwardListsParams params) {
  using namespace heddle;
  constexpr unsigned kWarps = shared::kBackwardListThreads / 32;
  __shared__ int of_warps[kWarps], begin;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int i = static_cast<int>(blockIdx.x * shared::kBackwardListThreads + threadIdx.x);
  bool left = i < params.item_count;
  shared::BackwardItem item;
  if (left) {
    item = params.items[i];
    const shared::SequenceSpan span = params.spans[item.batch];
    left = !params.packed || params.keeps_all || item.kv_tile * params.tile_keys < span.kv_len;
    item = shared::cut_backward_item(params, item, span);
  }
  if (params.keeps_all) {
    if (left) params.left[i] = item;
    if (i == 0) *params.left_count = params.item_count;
    return;
  }
  const unsigned vote = __ballot_sync(~0U, left);
  if (lane == 0) of_warps[warp] = __popc(vote);
  __syncthreads();
  int before = 0, all = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w < warp) before += of_warps[w];
    all += of_warps[w];
  }
  if (threadIdx.x == 0 && all > 0) begin = atomicAdd(params.left_count, all);
  __syncthreads();
  if (left) params.left[begin + before + __popc(vote & ((1U << lane) - 1))] = item;
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kBackwardListThreads)
    fill_backward_gaps(const __grid_constant__ heddle::shared::BackwardListsParams params) {
  using namespace heddle;
  const int next = static_cast<int>(blockIdx.x);
  int q_first = 0, kv_first = 0, q_end = params.q_rows, kv_end = params.kv_rows;
  if (next > 0) {
    const shared::SequenceSpan span = params.spans[next - 1];
    q_first = span.q_begin + span.q_len;
    kv_first = span.kv_begin + span.kv_len;
  }
  if (next < params.count) {
    q_end = params.spans[next].q_begin;
    kv_end = params.spans[next].kv_begin;
  }
  lists::fill_rows(params.d_q, q_first, q_end);
  lists::fill_rows(params.d_k, kv_first, kv_end);
  lists::fill_rows(params.d_v, kv_first, kv_end);
}
