// Moves rows between tensors, in the type of the target, or adds them to its rows. Lists may say which rows. Memory
// bandwidth is the limit: `lanes` threads share a row, and a thread takes eight columns at a time.
//
// The generated source includes this file last. It defines kFromType, kToType and kAdds before.
#pragma once

#include "around/eight_columns_access.cuh"
#include "shared/move_params.h"

namespace heddle::move {

using shared::kColumns;
using shared::MoveParams;
using shared::StorageType;

template <bool kWide>
struct RealOf {
  using Type = float;
};
template <>
struct RealOf<true> {
  using Type = double;
};
/// f64 if one of the tensors is.
using Real = typename RealOf<kFromType == StorageType::f64 || kToType == StorageType::f64>::Type;

__device__ __forceinline__ void move_row(const MoveParams& params, int number, int lane) {
  const int in_head = number % params.rows_of_head;
  const long long head = number / params.rows_of_head % params.heads,
                  batch = number / params.rows_of_head / params.heads;
  const long long from_row = params.from_rows == nullptr ? in_head : params.from_rows[in_head],
                  to_row = params.to_rows == nullptr ? in_head : params.to_rows[in_head];
  const long long from =
      batch * params.from_stride[0] + head * params.from_stride[1] + from_row * params.from_stride[2];
  const long long to = batch * params.to_stride[0] + head * params.to_stride[1] + to_row * params.to_stride[2];
  for (int first = kColumns * lane; first < params.columns; first += kColumns * params.lanes) {
    const int left = params.columns - first;
    Real x[kColumns];
    columns::load<kFromType>(params.from, from + first, params.from_vectorised != 0, left, x);
    if constexpr (kAdds) {
      Real sum[kColumns];
      columns::load<kToType>(params.to, to + first, params.to_vectorised != 0, left, sum);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) x[i] = sum[i] + x[i];
    }
    columns::store<kToType>(params.to, to + first, params.to_vectorised != 0, left, x);
  }
}

}  // namespace heddle::move

extern "C" __global__ void __launch_bounds__(heddle::shared::kMoveThreads)
    move_rows(const __grid_constant__ heddle::shared::MoveParams params) {
  const int of_cta = heddle::shared::kMoveThreads / params.lanes;
  // Counted in 64 bits: the last step may pass 2^31.
  for (long long number = static_cast<long long>(blockIdx.x) * of_cta + threadIdx.x / params.lanes;
       number < params.rows; number += static_cast<long long>(gridDim.x) * of_cta) {
    heddle::move::move_row(params, static_cast<int>(number), static_cast<int>(threadIdx.x) & (params.lanes - 1));
  }
}
