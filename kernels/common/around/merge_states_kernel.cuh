// Merges results over disjoint sets of keys: o = sum(o_n exp(lse_n - lse)), lse = ln sum exp(lse_n), computed in f64 as
// on the CPU. Memory bandwidth is the limit.
//
// A warp takes a few rows at a time, with `lanes` threads for each row. A thread takes eight columns of all parts. One
// thread of a row computes a part's weight and hands it to the others.
//
// The output may be the memory of a part. So lse is written after all threads of the warp have read it, and a thread
// writes only columns that no other thread reads.
//
// The generated source includes this file last. It defines kPartsType and kOutputType before.
#pragma once

#include "around/eight_columns_access.cuh"
#include "shared/merge_params.h"

namespace heddle::merge {

using shared::kColumns;
using shared::MergeParams;
using shared::MergePart;
using shared::StorageType;

/// A row of all heads and batches.
struct Row {
  long long batch, head, row;
  __device__ __forceinline__ Row(const MergeParams& params, int number)
      : batch(number / params.rows_of_head / params.heads),
        head(number / params.rows_of_head % params.heads),
        row(number % params.rows_of_head) {}
  __device__ __forceinline__ long long offset(const long long (&stride)[3]) const {
    return batch * stride[0] + head * stride[1] + row * stride[2];
  }
};

/// Calls body<type>() for the type's value.
template <class Body>
__device__ __forceinline__ void with_type(StorageType type, Body&& body) {
  switch (type) {
    case StorageType::f64:
      return body.template operator()<StorageType::f64>();
    case StorageType::f32:
      return body.template operator()<StorageType::f32>();
    case StorageType::f16:
      return body.template operator()<StorageType::f16>();
    case StorageType::bf16:
      return body.template operator()<StorageType::bf16>();
    case StorageType::e4m3:
      return body.template operator()<StorageType::e4m3>();
    default:
      return body.template operator()<StorageType::e5m2>();
  }
}

__device__ __forceinline__ double minus_infinity() { return __longlong_as_double(0xFFF0000000000000LL); }

__device__ __forceinline__ double lse_of(const MergePart& part, const Row& row) {
  const long long at = row.offset(part.lse_stride);
  return part.lse_type == StorageType::f64 ? static_cast<const double*>(part.lse)[at]
                                           : static_cast<double>(static_cast<const float*>(part.lse)[at]);
}

/// The weight of a part in which nothing attended: its o is ignored.
constexpr double kNothing = -1;

/// `lane`: of the row's. All threads of a warp call together, with the same counts.
template <StorageType kType>
__device__ __forceinline__ void merge_row(const MergeParams& params, const Row& row, int lane, bool real) {
  const int lanes = params.lanes;
  double top = minus_infinity();
  for (int p = lane; p < params.count; p += lanes) top = fmax(top, lse_of(params.part[p], row));  // passes over NaN
  for (int other = lanes / 2; other > 0; other /= 2) top = fmax(top, __shfl_xor_sync(~0U, top, other));

  double merged = minus_infinity();
  int first = 0;
  do {
    const int left = params.columns - first - kColumns * lane;
    double sum[kColumns] = {}, total = 0;
    for (int begin = 0; begin < params.count; begin += lanes) {
      double own = kNothing;
      if (begin + lane < params.count) {
        const double lse = lse_of(params.part[begin + lane], row);
        if (lse != minus_infinity()) own = exp(lse - top);
      }
      const int here = min(lanes, params.count - begin);
#pragma unroll(kType == StorageType::mixed ? 1 : 2)
      for (int j = 0; j < here; ++j) {
        const double weight = __shfl_sync(~0U, own, j, lanes);
        const bool counts = !(weight < 0);  // NaN does
        const MergePart& part = params.part[begin + j];
        const long long at = row.offset(part.o_stride) + first + kColumns * lane;
        double x[kColumns] = {};
        if (left > 0) {
          if constexpr (kType == StorageType::mixed) {
            with_type(part.o_type,
                      [&]<StorageType kOwn>() { columns::load<kOwn>(part.o, at, part.vectorised != 0, left, x); });
          } else {
            columns::load<kType>(part.o, at, part.vectorised != 0, left, x);
          }
        }
        total = counts ? total + weight : total;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) sum[i] = counts ? fma(weight, x[i], sum[i]) : sum[i];
      }
    }
    merged = total == 0 ? minus_infinity() : top + log(total);
    const double share = total == 0 ? 0.0 : 1 / total;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sum[i] *= share;
    if (real && left > 0) {
      const long long at = row.offset(params.o_stride) + first + kColumns * lane;
      columns::store<kOutputType>(params.o, at, params.vectorised != 0, left, sum);
    }
    first += kColumns * lanes;
  } while (first < params.columns);

  __syncwarp();  // all have read the parts' lse, one of which this may be
  if (real && lane == 0 && params.lse != nullptr) {
    const long long at = row.offset(params.lse_stride);
    if (params.lse_type == StorageType::f64) {
      static_cast<double*>(params.lse)[at] = merged;
    } else {
      static_cast<float*>(params.lse)[at] = __double2float_rn(merged);
    }
  }
}

template <StorageType kType>
__device__ __forceinline__ void merge_rows(const MergeParams& params) {
  const int at_once = 32 / params.lanes, in_warp = (threadIdx.x & 31) / params.lanes;
  const int warps = static_cast<int>(gridDim.x) * (shared::kMergeThreads / 32);
  const int warp = static_cast<int>(blockIdx.x) * (shared::kMergeThreads / 32) + (threadIdx.x >> 5);
  // Counted in 64 bits: the last step may pass 2^31.
  for (long long begin = static_cast<long long>(warp) * at_once; begin < params.rows;
       begin += static_cast<long long>(warps) * at_once) {
    const long long number = begin + in_warp;
    const bool real = number < params.rows;
    const Row row(params, real ? static_cast<int>(number) : params.rows - 1);
    merge_row<kType>(params, row, threadIdx.x & (params.lanes - 1), real);
  }
}

}  // namespace heddle::merge

extern "C" __global__ void __launch_bounds__(heddle::shared::kMergeThreads, 2)
    merge_states(const __grid_constant__ heddle::shared::MergeParams params) {
  heddle::merge::merge_rows<heddle::merge::kPartsType>(params);
}
