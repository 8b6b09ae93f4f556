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

#include "fragments/output_elements.cuh"
#include "mods/captures.cuh"
#include "mods/bits.cuh"
#include "shared/merge_states.h"

namespace heddle::merge {

using shared::kMergeColumns;
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

template <StorageType kType>
struct Stored;
template <>
struct Stored<StorageType::f64> {
  static constexpr int kBytes = 8;
  static __device__ __forceinline__ double value(unsigned long long bits) {
    return __longlong_as_double(static_cast<long long>(bits));
  }
};
template <class Storage>
struct StoredAs {
  static constexpr int kBytes = Storage::kApart;
  static __device__ __forceinline__ double value(unsigned bits) { return Storage::value(bits); }
};
template <>
struct Stored<StorageType::f32> : StoredAs<ops::F32> {};
template <>
struct Stored<StorageType::f16> : StoredAs<ops::F16> {};
template <>
struct Stored<StorageType::bf16> : StoredAs<ops::Bf16> {};
template <>
struct Stored<StorageType::e4m3> : StoredAs<ops::E4m3> {};
template <>
struct Stored<StorageType::e5m2> : StoredAs<ops::E5m2> {};

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

/// Eight neighbours; those from `left` on are 0 and not read.
template <StorageType kType>
__device__ __forceinline__ void load(const void* from, long long offset, bool wide, int left,
                                     double (&x)[kMergeColumns]) {
  constexpr int kBytes = Stored<kType>::kBytes;
  using Bits = ptx::Bits<kBytes>;
  const Bits* at = static_cast<const Bits*>(from) + offset;
  if (wide && left >= kMergeColumns) {
    constexpr int kWords = 2 * kBytes;
    unsigned word[kWords];
    if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(at);
      word[0] = two.x;
      word[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 four = reinterpret_cast<const uint4*>(at)[i];
        word[4 * i] = four.x;
        word[4 * i + 1] = four.y;
        word[4 * i + 2] = four.z;
        word[4 * i + 3] = four.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kMergeColumns; ++i) {
      if constexpr (kBytes == 8) {
        x[i] = Stored<kType>::value(static_cast<unsigned long long>(word[2 * i + 1]) << 32 | word[2 * i]);
      } else {
        constexpr int kOfWord = 4 / kBytes;
        x[i] = Stored<kType>::value((word[i / kOfWord] >> 8 * kBytes * (i % kOfWord)) & (~0U >> (32 - 8 * kBytes)));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kMergeColumns; ++i) x[i] = i < left ? Stored<kType>::value(at[i]) : 0.0;
  }
}

/// Rounds an f64 to an f32 between which and it no narrower type has a number or a tie, so that a second rounding is
/// right.
__device__ __forceinline__ float to_odd(double x) {
  const float near = __double2float_rz(x);
  return static_cast<double>(near) == x ? near : __uint_as_float(__float_as_uint(near) | 1U);
}

template <StorageType kType>
__device__ __forceinline__ void store(void* to, long long offset, bool wide, int left,
                                      const double (&x)[kMergeColumns]) {
  if constexpr (kType == StorageType::f64) {
    auto* at = static_cast<double*>(to) + offset;
#pragma unroll
    for (int i = 0; i < kMergeColumns; ++i) {
      if (i < left) at[i] = x[i];
    }
  } else if constexpr (kType == StorageType::f32) {
    auto* at = static_cast<float*>(to) + offset;
    if (wide && left >= kMergeColumns) {
#pragma unroll
      for (int i = 0; i < kMergeColumns; i += 4) {
        *reinterpret_cast<float4*>(at + i) = make_float4(__double2float_rn(x[i]), __double2float_rn(x[i + 1]),
                                                         __double2float_rn(x[i + 2]), __double2float_rn(x[i + 3]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kMergeColumns; ++i) {
        if (i < left) at[i] = __double2float_rn(x[i]);
      }
    }
  } else {
    constexpr OutputType kOutput = kType == StorageType::f16    ? OutputType::f16
                                   : kType == StorageType::bf16 ? OutputType::bf16
                                   : kType == StorageType::e4m3 ? OutputType::e4m3
                                                                : OutputType::e5m2;
    using Elements = OutputElements<kOutput, false>;
    auto* at = static_cast<typename Elements::One*>(to) + offset;
    typename Elements::Pair pair[kMergeColumns / 2];
#pragma unroll
    for (int i = 0; i < kMergeColumns / 2; ++i) pair[i] = Elements::pair(to_odd(x[2 * i]), to_odd(x[2 * i + 1]));
    if (wide && left >= kMergeColumns) {
      if constexpr (sizeof(pair) == 16) {
        *reinterpret_cast<uint4*>(at) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
      } else {
        *reinterpret_cast<uint2*>(at) =
            make_uint2(pair[0] | static_cast<unsigned>(pair[1]) << 16, pair[2] | static_cast<unsigned>(pair[3]) << 16);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kMergeColumns; ++i) {
        constexpr int kBits = 8 * static_cast<int>(sizeof(typename Elements::One));
        const unsigned both = pair[i / 2];
        if (i < left) at[i] = static_cast<typename Elements::One>(both >> kBits * (i % 2));
      }
    }
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
    const int left = params.columns - first - kMergeColumns * lane;
    double sum[kMergeColumns] = {}, total = 0;
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
        const long long at = row.offset(part.o_stride) + first + kMergeColumns * lane;
        double x[kMergeColumns] = {};
        if (left > 0) {
          if constexpr (kType == StorageType::mixed) {
            with_type(part.o_type, [&]<StorageType kOwn>() { load<kOwn>(part.o, at, part.wide != 0, left, x); });
          } else {
            load<kType>(part.o, at, part.wide != 0, left, x);
          }
        }
        total = counts ? total + weight : total;
#pragma unroll
        for (int i = 0; i < kMergeColumns; ++i) sum[i] = counts ? fma(weight, x[i], sum[i]) : sum[i];
      }
    }
    merged = total == 0 ? minus_infinity() : top + log(total);
    const double share = total == 0 ? 0.0 : 1 / total;
#pragma unroll
    for (int i = 0; i < kMergeColumns; ++i) sum[i] *= share;
    if (real && left > 0) {
      const long long at = row.offset(params.o_stride) + first + kMergeColumns * lane;
      store<kOutputType>(params.o, at, params.wide != 0, left, sum);
    }
    first += kMergeColumns * lanes;
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
