// Appends new rows of keys and values to a cache, in its type, and turns keys and queries by a rotary embedding.
//
// A row is one head's of k, v or q. A warp takes a few rows at a time, with `lanes` threads for each, and a thread
// takes eight columns. If the halves of a row hold turned pairs, a thread also reads the eight partners of its columns.
// Each thread writes its own columns alone.
//
// The generated source includes this file last. It defines kNewType, kKeysType, kValuesType, kQueriesType and
// kAnglesType before; the last two are `mixed` where there are none.
#pragma once

#include "around/eight_columns_access.cuh"
#include "sequences/sequence_rows.cuh"
#include "shared/append_params.h"

namespace heddle::append {

using shared::AppendedRows;
using shared::AppendParams;
using shared::kColumns;
using shared::StorageType;

template <bool kWide>
struct RealOf {
  using Type = float;
};
template <>
struct RealOf<true> {
  using Type = double;
};
constexpr bool is_f64(StorageType type) { return type == StorageType::f64; }
/// f64 if any of the tensors is.
using Real = typename RealOf<is_f64(kNewType) || is_f64(kKeysType) || is_f64(kValuesType) || is_f64(kQueriesType) ||
                             is_f64(kAnglesType)>::Type;

/// A new row: its sequence, its number there, and its number in the tensor.
struct NewRow {
  int sequence, number, row, head;
  bool there;
};

/// The last sequence that begins at `row` or before it.
__device__ __forceinline__ int sequence_of(const AppendParams& params, int row) {
  int low = 0, high = params.batch - 1;
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (sequences::number(params.starts, middle) <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ __forceinline__ NewRow new_row(const AppendParams& params, const AppendedRows& of, int rows,
                                          unsigned number) {
  NewRow row;
  row.head = static_cast<int>(number % of.heads);
  const unsigned all = number / of.heads;
  if (params.starts.data == nullptr) {
    row.sequence = static_cast<int>(all / rows);
    row.row = row.number = static_cast<int>(all % rows);
    row.there = true;
  } else {
    row.row = static_cast<int>(all);
    row.sequence = sequence_of(params, row.row);
    const long long first = sequences::number(params.starts, row.sequence);
    row.there = row.row >= first && row.row < sequences::number(params.starts, row.sequence + 1);
    row.number = static_cast<int>(row.row - first);
  }
  return row;
}

/// Whether a new row has a place in a cache; its offset there, which strides may make negative.
__device__ __forceinline__ bool find_offset(const AppendParams& params, const AppendedRows& of, const NewRow& row,
                                            long long& offset) {
  const shared::PageTable& table = params.table;
  const bool listed = table.starts.data != nullptr;
  const long long at = sequences::number(params.lengths, row.sequence) + row.number;
  const long long room =
      listed ? shared::keys_in_pages(table.starts, row.sequence, params.page_rows, params.room) : params.room;
  if (at < 0 || at >= room) return false;
  long long entry = row.sequence, inside = at;
  if (table.data != nullptr) {
    const long long before =
        listed ? shared::first_entry(table, row.sequence) * table.stride[1] : row.sequence * table.stride[0];
    entry = table.data[before + at / params.page_rows * table.stride[1]];
    inside = at % params.page_rows;
    if (entry < 0 || entry >= table.pages) return false;
  }
  offset = entry * of.to.stride[0] + row.head * of.to.stride[1] + inside * of.to.stride[2];
  return true;
}

__device__ __forceinline__ long long offset_of(const long long (&stride)[3], const AppendParams& params,
                                               const NewRow& row) {
  const int batch = params.starts.data == nullptr ? row.sequence : 0;
  return batch * stride[0] + row.head * stride[1] + row.row * stride[2];
}

/// The row's position in the tables of angles.
__device__ __forceinline__ int position_of(const AppendParams& params, const NewRow& row, bool at_first) {
  const shared::LengthsView& first = params.first_positions.data != nullptr ? params.first_positions : params.lengths;
  const long long position = sequences::number(first, row.sequence) + (at_first ? 0 : row.number);
  return static_cast<int>(shared::clamped(position, 0, params.angles.positions - 1));
}

/// An element of a tensor of numbers.
template <StorageType kType>
__device__ __forceinline__ Real number_at(const void* table, long long at) {
  using Element = columns::Stored<kType>;
  return static_cast<Real>(Element::value(static_cast<const ptx::Bits<Element::kBytes>*>(table)[at]));
}

/// Turns columns `first` and on of a row at `from`, of which x are the values, by angles of type kAngles.
template <StorageType kAngles>
__device__ __forceinline__ void turn(const AppendParams& params, const AppendedRows& of, long long from, int position,
                                     int first, Real (&x)[kColumns]) {
  const shared::Angles& angles = params.angles;
  const int half = of.turned / 2;
  Real partner[kColumns];
  if (angles.interleaved) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) partner[i] = x[i ^ 1];
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = first + i;
      const int other = column < half ? column + half : column - half;
      partner[i] = column < of.turned ? number_at<kNewType>(of.from.data, from + other) : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = first + i;
    if (column >= of.turned) continue;
    const bool is_first = angles.interleaved ? column % 2 == 0 : column < half;
    const int pair = angles.interleaved ? column / 2 : is_first ? column : column - half;
    const Real c = number_at<kAngles>(angles.cos, position * angles.cos_stride[0] + pair * angles.cos_stride[1]);
    const Real s = number_at<kAngles>(angles.sin, position * angles.sin_stride[0] + pair * angles.sin_stride[1]);
    x[i] = is_first ? x[i] * c - partner[i] * s : x[i] * c + partner[i] * s;
  }
}

/// In 8 bits, larger magnitudes become the largest finite number. NaN stays.
template <StorageType kTo>
__device__ __forceinline__ Real within(Real x) {
  if constexpr (kTo != StorageType::e4m3 && kTo != StorageType::e5m2) return x;
  constexpr Real kMost = kTo == StorageType::e4m3 ? 448 : 57344;
  return x > kMost ? kMost : x < -kMost ? -kMost : x;
}

/// Row `number` of k, v or q, by `lane` of its lanes. `rows`: of a sequence. kCached: it goes to a cache.
template <StorageType kTo, bool kCached>
__device__ __forceinline__ void append_row(const AppendParams& params, const AppendedRows& of, int rows,
                                           unsigned number, int lane) {
  const NewRow row = new_row(params, of, rows, number);
  if (!row.there) return;
  const long long from = offset_of(of.from.stride, params, row);
  long long to = offset_of(of.to.stride, params, row);
  if (kCached && !find_offset(params, of, row, to)) return;
  [[maybe_unused]] int position = 0;
  if constexpr (kAnglesType != StorageType::mixed) {
    if (of.turned > 0) position = position_of(params, row, !kCached && params.angles.queries_at_first != 0);
  }
  Real factor = 1;
  if (of.descale.factors != nullptr) {
    factor = of.descale.factors[row.sequence * of.descale.stride[0] + row.head * of.descale.stride[1]];
  }
  for (int first = kColumns * lane; first < of.columns; first += kColumns * params.lanes) {
    Real x[kColumns];
    const int left = of.columns - first;
    columns::load<kNewType>(of.from.data, from + first, of.vectorised != 0, left, x);
    if constexpr (kAnglesType != StorageType::mixed) {
      if (first < of.turned) turn<kAnglesType>(params, of, from, position, first, x);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] = within<kTo>(x[i] / factor);
    columns::store<kTo>(of.to.data, to + first, of.vectorised != 0, left, x);
  }
}

__device__ __forceinline__ void append_rows(const AppendParams& params) {
  const long long rows_of_cta = shared::kAppendThreads / params.lanes;
  const int lane = static_cast<int>(threadIdx.x) % params.lanes;
  const long long all = static_cast<long long>(params.k.rows) + params.v.rows + params.q.rows;
  for (long long begin = blockIdx.x * rows_of_cta; begin < all; begin += gridDim.x * rows_of_cta) {
    long long number = begin + threadIdx.x / params.lanes;
    if (number < params.k.rows) {
      append_row<kKeysType, true>(params, params.k, params.k_rows, static_cast<unsigned>(number), lane);
      continue;
    }
    number -= params.k.rows;
    if (number < params.v.rows) {
      append_row<kValuesType, true>(params, params.v, params.k_rows, static_cast<unsigned>(number), lane);
      continue;
    }
    number -= params.v.rows;
    if constexpr (kQueriesType != StorageType::mixed) {
      if (number < params.q.rows) {
        append_row<kQueriesType, false>(params, params.q, params.q_rows, static_cast<unsigned>(number), lane);
      }
    }
  }
}

}  // namespace heddle::append

extern "C" __global__ void __launch_bounds__(heddle::shared::kAppendThreads)
    append_kv(const __grid_constant__ heddle::shared::AppendParams params) {
  heddle::append::append_rows(params);
}
