// The rows of a sequence whose lengths are in the device's memory.
#pragma once

#include "shared/sequences.h"

namespace heddle::sequences {

using shared::RowSpan;
using shared::SequencesParams;

/// Entry i, as it is.
__device__ __forceinline__ long long number(const shared::LengthsView& view, int i) {
  const long long at = i * view.stride;
  if (view.is_i64) return static_cast<const long long*>(view.data)[at];
  return static_cast<const int*>(view.data)[at];
}
/// Entry i, within 0 and `most`.
__device__ __forceinline__ int entry(const shared::LengthsView& view, int i, int most) {
  return static_cast<int>(shared::clamped(number(view, i), 0, most));
}

/// Packed rows: where sequence i ends, if no earlier one ends behind it.
__device__ __forceinline__ int end_of_queries(const SequencesParams& params, int i) {
  return entry(params.q, i + 1, params.q_rows);
}
__device__ __forceinline__ int end_of_keys(const SequencesParams& params, int i) {
  return entry(params.kv, i + 1, params.kv_rows);
}
/// Rows of a padded sequence.
__device__ __forceinline__ RowSpan padded_queries(const SequencesParams& params, int i) {
  return {0, params.q.data != nullptr ? entry(params.q, i, params.max_q_len) : params.max_q_len};
}
/// kMayBeListed: keys may stand in pages that a list has (SequencesParams::page_starts).
template <bool kMayBeListed = true>
__device__ __forceinline__ RowSpan padded_keys(const SequencesParams& params, int i) {
  int most = params.max_kv_len;
  if constexpr (kMayBeListed) {
    if (params.page_starts.data != nullptr) {
      most = static_cast<int>(shared::keys_in_pages(params.page_starts, i, params.page_rows, most));
    }
  }
  return {0, params.kv.data != nullptr ? entry(params.kv, i, most) : most};
}

/// Sequence i, which has these rows; of packed keys some may not be used.
__device__ __forceinline__ shared::SequenceSpan placed(const SequencesParams& params, int i, RowSpan q, RowSpan kv) {
  if (params.kv_packed && params.kv_used.data != nullptr) {
    kv.end = kv.begin + entry(params.kv_used, i, kv.end - kv.begin);
  }
  return shared::span_of(params, q, kv, params.q_start.data != nullptr ? number(params.q_start, i) : 0);
}

}  // namespace heddle::sequences
