// The kernels around the pass of reads (families/backward_sm90/shared/backward_reads_params.h):
//
//   clear_reads     zeros in the sums and in gradients that pairs store, before the pass
//   collect_reads   a CTA a sequence, head and share of it: partials of rows and distances, over all keys in order; the
//                   largest of each sum
//   scatter_reads   the same CTAs: partials as integers to their places
//   store_reads     sums to gradients
//
// Included last by a generated source, which defines kConfig, the mods' functions, the reads, kSumTypes, kSumStored,
// for_each_sum() and for_each_partial_read().
#pragma once

#include "fragments/output_elements.cuh"
#include "backward_sm90/read_index.cuh"
#include "ptx/math.cuh"
#include "shared/backward_lists.h"
#include "families/backward_sm90/shared/backward_reads_params.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"

namespace heddle {

using shared::BackwardReadsParams;
using shared::BackwardSm90Params;
using shared::ReadKind;

inline constexpr int kThreads = shared::kReadThreads;

/// One sequence's rows, and the head of a CTA.
struct ReadSequence {
  int batch, head;
  int q_len, kv_len, q_start, kv_begin;
  int first_block;

  __device__ __forceinline__ ReadSequence(const BackwardSm90Params& params, const BackwardReadsParams& reads)
      : batch(static_cast<int>(blockIdx.x) / params.q_heads), head(static_cast<int>(blockIdx.x) % params.q_heads) {
    int q_begin = 0;
    if constexpr (kConfig.by_sequence) {
      const shared::SequenceSpan span = params.mod.sequences[batch];
      q_len = span.q_len, kv_len = span.kv_len, q_start = span.q_start, kv_begin = span.kv_begin;
      q_begin = span.q_begin;
    } else {
      q_len = params.tensors.q_len, kv_len = params.tensors.kv_len, q_start = params.mod.q_start, kv_begin = 0;
    }
    first_block = reads.first_blocks != nullptr ? reads.first_blocks[batch]
                                                : shared::first_block_of(q_begin, batch, reads.padded_blocks);
  }
  /// How many partials a read has.
  __device__ __forceinline__ int positions(ReadKind kind) const {
    if (kind == ReadKind::columns) return kv_len;
    if (kind != ReadKind::diagonals) return q_len;
    return q_len > 0 && kv_len > 0 ? q_len + kv_len - 1 : 0;
  }
};

/// The sum over keys for a row whose terms are the row's own (ReadKind::closed), times the term's slope.
template <class Read>
__device__ __forceinline__ float closed_value(const BackwardSm90Params& params, const BackwardReadsParams& reads,
                                              const ReadSequence& of, int row) {
  const int block = of.first_block + row / shared::kBlockRows;
  const float* of_block = params.rows + (static_cast<long long>(block) * params.q_heads + of.head) *
                                            shared::block_numbers(kConfig.lse_rest);
  const float* numbers = of_block + shared::offset_of_row(row % shared::kBlockRows);
  const float lse = numbers[0], delta = numbers[shared::kBlockNumbers];  // lse in powers of two
  float low = 0;
  bool far = false;
  if constexpr (kConfig.lse_rest) {
    far = __float_as_int(of_block[shared::kFlagOffset]) != 0;
    if (far) low = of_block[2 * shared::kBlockNumbers + shared::low_of_row(row % shared::kBlockRows)];
  }
  if ((far ? low : lse) == ptx::infinity()) return 0;  // nothing attends
  float sum = 0 * (lse + delta);                       // NaN where the row is
  if (reads.d_lse.data != nullptr) {
    const int own = kConfig.by_sequence && reads.packed != 0 ? params.mod.sequences[of.batch].q_begin + row : row;
    const long long at =
        of.batch * reads.d_lse.stride[0] + of.head * reads.d_lse.stride[1] + own * reads.d_lse.stride[2];
    sum += static_cast<const float*>(reads.d_lse.data)[at];
  }
  if (reads.sinks.data != nullptr) {
    const float natural = reads.sinks.data[of.head * reads.sinks.stride], sink = natural * ptx::kLog2E;
    // If a row attends its sink alone, delta comes from d_lse alone.
    if (!far && lse == sink && !(fabsf(delta) < ptx::infinity())) return 0;
    float power = sink - lse;
    if (far) power = fmaf(fmaf(-lse, reads.unit, natural), ptx::kLog2E, -low);
    if (far && power == 0 && !(fabsf(delta) < ptx::infinity())) return 0;
    sum += ptx::exp2_fast(power) * delta;
  }
  using Slope = typename Read::Slope;
  const auto uniform = Slope::uniform(params.mod, of.batch, of.head);
  const auto slope = Slope::row(params.mod, uniform, of.batch, of.head, row + of.q_start);
  const auto column = Slope::column(params.mod, uniform, of.batch, of.head, 0);
  return sum * Read::slope(params.mod, uniform, slope, column, 0.0F, of.batch, of.head, row + of.q_start, 0);
}

/// Where partials over all 64 keys of rows and distances are kept behind collect_reads: with the first of them.
template <class Read>
__device__ __forceinline__ float* partial_at(const BackwardSm90Params& params, const BackwardReadsParams& reads,
                                             const ReadSequence& of, int position, int group_after_first) {
  float* const all = reads.partials[Read::kNumber];
  const bool apart = reads.apart != 0;
  if constexpr (Read::kKind == ReadKind::columns) {
    const long long before = reads.packed != 0 ? of.kv_begin : static_cast<long long>(of.batch) * reads.kv_rows;
    return all + of.head * reads.all_keys + before + position;
  } else if constexpr (Read::kKind == ReadKind::rows) {
    const int number = of.first_block + position / shared::kBlockRows;
    return all +
           shared::row_slot(number, params.q_heads, of.head, group_after_first, reads.groups, apart) *
               shared::kBlockRows +
           position % shared::kBlockRows;
  } else {
    const int distance = position - (of.q_len - 1);  // kv - q, of places in the sequence
    const int apart_by = distance >> 6;              // group - block
    const int group = max(apart_by, 0) + group_after_first;
    return all +
           shared::diagonal_slot(of.first_block, of.batch, params.q_heads, of.head, group - apart_by, group,
                                 reads.groups, apart) *
               shared::kBlockRows +
           (distance & 63);
  }
}

/// Over all keys, in order.
template <class Read>
__device__ __forceinline__ float collected(const BackwardSm90Params& params, const BackwardReadsParams& reads,
                                           const ReadSequence& of, int position) {
  if constexpr (Read::kKind == ReadKind::closed) {
    return closed_value<Read>(params, reads, of, position);
  } else {
    float* const first = partial_at<Read>(params, reads, of, position, 0);
    if (Read::kKind == ReadKind::columns || reads.apart == 0) return *first;
    int groups = (of.kv_len + 63) / 64;
    if constexpr (Read::kKind == ReadKind::diagonals) {
      const int apart_by = (position - (of.q_len - 1)) >> 6;
      groups = min(groups - max(apart_by, 0), shared::blocks_of_rows(of.q_len) + 1 + min(apart_by, 0));
    }
    float sum = 0;
    for (int group = 0; group < groups; ++group) sum += *partial_at<Read>(params, reads, of, position, group);
    *first = sum;
    return sum;
  }
}

template <class Read>
__device__ __forceinline__ float partial(const BackwardSm90Params& params, const BackwardReadsParams& reads,
                                         const ReadSequence& of, int position) {
  if constexpr (Read::kKind == ReadKind::closed) {
    return closed_value<Read>(params, reads, of, position);
  } else {
    return *partial_at<Read>(params, reads, of, position, 0);
  }
}

/// 64 bits of another lane.
__device__ __forceinline__ long long from_lane(long long x, int lane) {
  const auto low = __shfl_sync(~0U, static_cast<unsigned>(x), lane);
  const auto high = __shfl_sync(~0U, static_cast<unsigned>(x >> 32), lane);
  return static_cast<long long>(static_cast<unsigned long long>(high) << 32 | low);
}

/// By whole warps: x to its place, as an integer. A warp whose places are one adds once.
template <class Read>
__device__ __forceinline__ void scatter(const BackwardReadsParams& reads, long long offset, float x) {
  const shared::ReadSum& sum = reads.sums[Read::kSum];
  const bool there = x != 0;
  const bool finite = fabsf(x) < ptx::infinity();
  if (there && !finite) atomicAdd(sum.floats + offset, x);
  const int exponent = shared::fixed_exponent(*sum.largest, sum.bits);
  const double factor = __longlong_as_double(static_cast<long long>(1023 + exponent) << 52);
  long long whole = there && finite ? llrint(static_cast<double>(x) * factor) : 0;
  const unsigned votes = __ballot_sync(~0U, there);
  if (votes == 0) return;
  int first = 0;
  while ((votes >> first & 1) == 0) ++first;
  const long long of_first = from_lane(offset, first);
  if (__ballot_sync(~0U, !there || offset == of_first) == ~0U) {
    for (int distance = 1; distance < 32; distance *= 2) {
      whole += from_lane(whole, static_cast<int>(threadIdx.x & 31) ^ distance);
    }
    if ((threadIdx.x & 31) != 0) return;
    offset = of_first;
  }
  if (whole != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(sum.fixed + offset), static_cast<unsigned long long>(whole));
  }
}

/// Calls visit(position) by whole warps; past the end, below 0.
template <class Visit>
__device__ __forceinline__ void for_positions(int positions, int shares, const Visit& visit) {
  for (int first = static_cast<int>(blockIdx.y) * kThreads; first < positions; first += shares * kThreads) {
    const int position = first + static_cast<int>(threadIdx.x);
    visit(position < positions ? position : -1);
  }
}

template <class Read>
__device__ __forceinline__ void collect_read(const BackwardSm90Params& params, const BackwardReadsParams& reads,
                                             int shares) {
  const ReadSequence of(params, reads);
  unsigned largest = 0;
  for_positions(of.positions(Read::kKind), shares, [&](int position) {
    if (position < 0) return;
    const float x = fabsf(collected<Read>(params, reads, of, position));
    if (x < ptx::infinity() && __float_as_uint(x) > largest) largest = __float_as_uint(x);
  });
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_xor_sync(~0U, largest, distance);
    if (other > largest) largest = other;
  }
  if ((threadIdx.x & 31) == 0 && largest > 0) atomicMax(reads.sums[Read::kSum].largest, largest);
}

template <class Read>
__device__ __forceinline__ void scatter_read(const BackwardSm90Params& params, const BackwardReadsParams& reads,
                                             int shares) {
  const ReadSequence of(params, reads);
  for_positions(of.positions(Read::kKind), shares, [&](int position) {
    float x = position < 0 ? 0.0F : partial<Read>(params, reads, of, position);
    int query = 0, key = 0;
    if constexpr (Read::kKind == ReadKind::columns) {
      key = position;
    } else if constexpr (Read::kKind == ReadKind::diagonals) {
      key = max(position - (of.q_len - 1), 0);
      query = key - (position - (of.q_len - 1));
    } else {
      query = position;
    }
    long long offset = 0;
    if (x != 0) {
      const ReadTarget target =
          target_of<Read>(params.mod, reads.sums[Read::kSum], 0.0F, of.batch, of.head, query + of.q_start, key);
      offset = target.number;
      if (Read::kSkipsOutside && !target.inside) x = 0;
    }
    scatter<Read>(reads, offset, x);
  });
}

/// Calls visit(element, offset in the gradient) for all elements, by all CTAs.
template <class Visit>
__device__ __forceinline__ void for_elements(const BackwardReadsParams& reads, const shared::ReadSum& sum,
                                             const Visit& visit) {
  const long long step = static_cast<long long>(reads.ctas) * kThreads;
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < sum.count; i += step) {
    long long left = i, offset = 0;
    for (int axis = sum.rank - 1; axis >= 0; --axis) {
      offset += left % sum.extent[axis] * sum.stride[axis];
      left /= sum.extent[axis];
    }
    visit(i, offset);
  }
}

template <int kSum>
__device__ __forceinline__ void store_element(const shared::ReadSum& sum, long long offset, float x) {
  using Elements = OutputElements<kSumTypes[kSum], kConfig.f16>;
  static_cast<typename Elements::One*>(sum.data)[offset] = Elements::first(Elements::pair(x, 0.0F));
}

template <int kSum>
__device__ __forceinline__ void clear_stored(const BackwardReadsParams& reads) {
  if constexpr (kSumStored[kSum]) {
    const shared::ReadSum& sum = reads.sums[kSum];
    for_elements(reads, sum, [&](long long, long long offset) { store_element<kSum>(sum, offset, 0.0F); });
  }
}

template <int kSum>
__device__ __forceinline__ void store_sum(const BackwardReadsParams& reads) {
  if constexpr (!kSumStored[kSum]) {
    const shared::ReadSum& sum = reads.sums[kSum];
    double unit = 0;
    if (sum.fixed != nullptr) {
      unit = __longlong_as_double(static_cast<long long>(1023 - shared::fixed_exponent(*sum.largest, sum.bits)) << 52);
    }
    for_elements(reads, sum, [&](long long i, long long offset) {
      double x = static_cast<double>(sum.floats[i]);
      if (sum.fixed != nullptr) x += static_cast<double>(sum.fixed[i]) * unit;
      store_element<kSum>(sum, offset, __double2float_rn(x));
    });
  }
}

}  // namespace heddle

extern "C" __global__ void __launch_bounds__(heddle::shared::kReadThreads)
    clear_reads(const __grid_constant__ heddle::shared::BackwardReadsParams reads) {
  using namespace heddle;
  auto* zeros = reinterpret_cast<float4*>(reads.zeros);
  const long long step = static_cast<long long>(reads.ctas) * kThreads;
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < reads.zero_bytes / 16;
       i += step) {
    zeros[i] = make_float4(0, 0, 0, 0);
  }
  for_each_sum([&]<int kSum>() { clear_stored<kSum>(reads); });
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kReadThreads)
    collect_reads(const __grid_constant__ heddle::shared::BackwardSm90Params params,
                  const __grid_constant__ heddle::shared::BackwardReadsParams reads, int shares) {
  using namespace heddle;
  for_each_partial_read([&]<class Read>() { collect_read<Read>(params, reads, shares); });
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kReadThreads)
    scatter_reads(const __grid_constant__ heddle::shared::BackwardSm90Params params,
                  const __grid_constant__ heddle::shared::BackwardReadsParams reads, int shares) {
  using namespace heddle;
  for_each_partial_read([&]<class Read>() { scatter_read<Read>(params, reads, shares); });
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kReadThreads)
    store_reads(const __grid_constant__ heddle::shared::BackwardReadsParams reads) {
  using namespace heddle;
  for_each_sum([&]<int kSum>() { store_sum<kSum>(reads); });
}
