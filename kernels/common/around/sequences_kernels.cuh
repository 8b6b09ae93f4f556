// Sequences whose lengths are in the device's memory: where they stand, and which tiles they leave. Small kernels run
// before an attention kernel, on its stream.
//
// place_sequences: one CTA, a thread for each sequence. A packed sequence begins where the one before ends. That is the
// largest of all cumulative lengths up to there, so the CTA scans them, kSpanThreads sequences at a time.
// list_tiles: a thread for each tile of the host's list. The tiles that one CTA lists keep their order. CTAs append in
// any order: this decides when a tile is computed, and nothing else.
// place_and_list: both in one launch of one CTA, where tiles are few.
#pragma once

#include "sequences/sequence_rows.cuh"

namespace heddle::sequences {

constexpr int kWarps = shared::kSpanThreads / 32;

/// Beginnings and ends of packed sequences. Each thread gives the end that its own sequence would have; no end lies
/// before an earlier one. By all threads; `largest`: of the CTA's earlier calls, and then of this one's, too.
struct Scan {
  int* of_warps;  // shared, [kWarps]
  int largest = 0;

  __device__ __forceinline__ RowSpan operator()(int end) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const int left = __shfl_up_sync(~0U, end, distance);
      if (lane >= distance) end = max(end, left);
    }
    if (lane == 31) of_warps[warp] = end;
    int begin = __shfl_up_sync(~0U, end, 1);
    if (lane == 0) begin = 0;
    __syncthreads();
    int before = largest;
    for (unsigned i = 0; i < kWarps; ++i) {
      if (i == warp) begin = max(begin, before), end = max(end, before);
      before = max(before, of_warps[i]);
    }
    largest = before;
    __syncthreads();
    return {begin, end};
  }
};

/// place_sequences, by all threads of a CTA of kSpanThreads.
__device__ __forceinline__ void place(const shared::SequencesParams& params) {
  __shared__ int of_warps[2][kWarps];
  Scan q_scan{of_warps[0]}, kv_scan{of_warps[1]};
  for (int first = 0; first < params.count; first += shared::kSpanThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool there = i < params.count;
    RowSpan q = {0, params.max_q_len}, kv = {0, params.max_kv_len};
    if (params.q_packed) {
      q = q_scan(there ? end_of_queries(params, i) : 0);
    } else if (there) {
      q = padded_queries(params, i);
    }
    if (params.kv_packed) {
      kv = kv_scan(there ? end_of_keys(params, i) : 0);
    } else if (there) {
      kv = padded_keys(params, i);
    }
    if (there) params.spans[i] = placed(params, i, q, kv);
  }
  if (threadIdx.x == 0) {
    params.spans[params.count] = {};
    params.spans[params.count].q_begin = params.q_rows;
    *params.left_count = 0;
  }
}

/// list_tiles for the tiles from `first` on, one a thread, by all threads of a CTA of kThreads.
template <int kThreads>
__device__ __forceinline__ void list(const shared::SequencesParams& params, int first) {
  constexpr unsigned kListWarps = kThreads / 32;
  __shared__ int of_warps[kListWarps], begin;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int i = first + static_cast<int>(threadIdx.x);
  bool left = i < params.item_count;
  shared::WorkItem item;
  int kv_len = 0;
  if (left) {
    item = params.items[i];
    const shared::SequenceSpan& span = params.spans[item.batch];
    left = item.q_tile * params.tile_queries < span.q_len;
    kv_len = span.kv_len;
  }
  const unsigned vote = __ballot_sync(~0U, left);
  if (lane == 0) of_warps[warp] = __popc(vote);
  __syncthreads();
  int before = 0, all = 0;
  for (unsigned w = 0; w < kListWarps; ++w) {
    if (w < warp) before += of_warps[w];
    all += of_warps[w];
  }
  if (threadIdx.x == 0 && all > 0) begin = atomicAdd(params.left_count, all);
  __syncthreads();
  if (left) params.left[begin + before + __popc(vote & ((1U << lane) - 1))] = shared::cut_item(params, item, kv_len);
}

}  // namespace heddle::sequences

extern "C" __global__ void __launch_bounds__(heddle::shared::kSpanThreads)
    place_sequences(const __grid_constant__ heddle::shared::SequencesParams params) {
  heddle::sequences::place(params);
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kListThreads)
    list_tiles(const __grid_constant__ heddle::shared::SequencesParams params) {
  constexpr int kThreads = heddle::shared::kListThreads;
  heddle::sequences::list<kThreads>(params, static_cast<int>(blockIdx.x) * kThreads);
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kSpanThreads)
    place_and_list(const __grid_constant__ heddle::shared::SequencesParams params) {
  constexpr int kThreads = heddle::shared::kSpanThreads;
  heddle::sequences::place(params);
  __syncthreads();  // the spans and left_count are there for all
  for (int first = 0; first < params.item_count; first += kThreads) heddle::sequences::list<kThreads>(params, first);
}
