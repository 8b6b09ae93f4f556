// mask_rows: the rows of a block mask, found where its captures are. Four kernels, in this order; the third twice.
//
//   zone_groups   a warp a group of 64 elements of a capture: its least and largest
//   zone_trees    a CTA a slice: groups of groups, to one that holds the whole axis
//   find_rows     a CTA a row of blocks, windows of 1024 blocks of keys one after the other: counts the row's runs, or,
//                 when it knows where they begin, writes them
//   scan_counts   one CTA: where each row's runs begin
//
// A window that intervals decide as a whole costs one question. In another, each lane asks about 32 blocks; where those
// stay open, a warp's lanes ask about one block each; blocks that stay open then are evaluated, element by element, by
// a warp until it has seen both values, in an order that jumps about: most masks change along a line. So the result is
// exact, whatever the intervals know.
//
// The source defines before this file: mask_uniform, _row, _column, _element (device_text/expression_text.h),
// mask_range (device_text/range_text.h), zone_group_of, zone_tree_of, and kQTokenWord and kKvTokenWord, the words of
// mod.params that hold what is added to a sequence's q_idx and kv_idx (-1: not used).
#pragma once

#include "mods/mask_ranges.cuh"
#include "shared/mask_rows.h"

namespace heddle::mask_rows {

using shared::MaskMatrix;
using shared::MaskRowsParams;
using shared::ZoneCell;

// ---- classes of blocks

enum class Class : unsigned char { empty, partial, full, open };

__device__ __forceinline__ Class class_of(shared::Truth truth) {
  if (truth.is_open()) return Class::open;
  return truth.can_be_true ? Class::full : Class::empty;
}

/// One row of blocks of one score matrix: in shared memory, where the function of the intervals finds its values.
struct Row {
  MaskMatrix matrix;
  shared::ModValues mod;
  const ZoneCell* zones[shared::kModCaptures];
  long long q_begin, q_end, kv_block;  // elements; q_start not added

  /// All threads of the CTA.
  __device__ __forceinline__ void set(const MaskRowsParams& params, int row) {
    copy_words(&mod, &params.mod);
    __syncthreads();
    if (threadIdx.x == 0) set_sequence(params, row);
    __syncthreads();
  }

  __device__ __forceinline__ void set_sequence(const MaskRowsParams& params, int row) {
    int below = 0, above = params.matrix_count;
    while (above - below > 1) {
      const int middle = below + (above - below) / 2;
      (params.matrices[middle].first_row <= row ? below : above) = middle;
    }
    matrix = params.matrices[below];
    mod.q_len = matrix.q_len;
    mod.kv_len = matrix.kv_len;
    mod.q_start = matrix.q_start;
    if constexpr (kQTokenWord >= 0) mod.params[kQTokenWord] = static_cast<unsigned>(matrix.q_token);
    if constexpr (kKvTokenWord >= 0) mod.params[kKvTokenWord] = static_cast<unsigned>(matrix.kv_token);
    for (int i = 0; i < shared::kModCaptures; ++i) zones[i] = params.zones[i].cells;
    q_begin = (row - matrix.first_row) * params.q_block;
    q_end = shared::smaller(matrix.q_len, q_begin + params.q_block);
    kv_block = params.kv_block;
  }

  static __device__ __forceinline__ void copy_words(shared::ModValues* to, const shared::ModValues* from) {
    static_assert(sizeof(shared::ModValues) % 8 == 0);
    const auto* read = reinterpret_cast<const unsigned long long*>(from);
    auto* write = reinterpret_cast<unsigned long long*>(to);
    for (unsigned i = threadIdx.x; i < sizeof(shared::ModValues) / 8; i += blockDim.x) write[i] = read[i];
  }

  __device__ __forceinline__ long long kv_begin(int column) const { return column * kv_block; }
  __device__ __forceinline__ long long kv_end(int column) const {  // of the columns before `column`
    return shared::smaller(matrix.kv_len, column * kv_block);
  }

  /// Class of the columns [begin, end) by intervals.
  __device__ __forceinline__ Class ask(int begin, int end) const {
    return class_of(mask_range(mod, zones, matrix.b, matrix.h, {matrix.q_start + q_begin, matrix.q_start + q_end - 1},
                               {kv_begin(begin), kv_end(end) - 1}));
  }

  /// Class of one column by its elements. All lanes of a warp take part and get the answer.
  __device__ __forceinline__ Class evaluate(int column) const {
    constexpr int kLanes = 32, kTogether = 4;  // steps whose loads are in flight together
    using shared::smaller;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int kv_first = static_cast<int>(kv_begin(column)), q_first = static_cast<int>(q_begin);
    const int keys = static_cast<int>(kv_end(column + 1)) - kv_first, queries = static_cast<int>(q_end) - q_first;
    const int chunks = (keys + kLanes - 1) / kLanes, bits = 32 - __clz(queries - 1);
    const MaskUniform uniform = mask_uniform(mod, matrix.b, matrix.h);
    bool some_true = false, some_false = false;
    for (long long i = 0; i < 1LL << bits; ++i) {
      const int q = bits == 0 ? 0 : static_cast<int>(__brev(static_cast<unsigned>(i)) >> (32 - bits));
      if (q >= queries) continue;
      const int q_idx = matrix.q_start + q_first + q;
      const MaskRow row = mask_row(mod, uniform, matrix.b, matrix.h, q_idx);
      for (int chunk = 0; chunk < chunks; chunk += kTogether) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          // Lanes stand far apart; those past the end take the last key once more.
          const long long key = smaller(chunk + j, chunks - 1) + static_cast<long long>(lane) * chunks;
          const int kv_idx = kv_first + static_cast<int>(smaller(key, keys - 1));
          const MaskColumn c = mask_column(mod, uniform, matrix.b, matrix.h, kv_idx);
          const bool attends = mask_element(mod, uniform, row, c, matrix.b, matrix.h, q_idx, kv_idx);
          some_true = some_true || attends;
          some_false = some_false || !attends;
        }
        some_true = __any_sync(~0U, some_true);
        some_false = __any_sync(~0U, some_false);
        if (some_true && some_false) return Class::partial;
      }
    }
    return some_true ? Class::full : Class::empty;
  }
};

// ---- runs

/// The runs of one row, as its columns come by. The CTA's first warp holds them; its lanes differ in `writes` alone.
class Runs {
 public:
  /// Null: they are counted only.
  __device__ __forceinline__ Runs(shared::MaskRun* first, long long room) : first_(first), room_(room) {}

  /// 32 columns, a lane each, from `begin` on: the class of each and of the one before it. What begins and ends there.
  __device__ __forceinline__ void add(int column, Class before, Class here, bool there) {
    const bool changes = there && before != here;
    const bool begins = changes && here != Class::empty, ends = changes && before != Class::empty;
    const unsigned all = __ballot_sync(~0U, begins), lane = threadIdx.x % 32;
    const int run = count_ + __popc(all & ((1U << lane) - 1));  // the number of one that begins here
    if (first_ != nullptr && begins && run < room_) {
      first_[run].begin = column;
      first_[run].kind = here == Class::full ? 1 : 0;
    }
    if (first_ != nullptr && ends && run - 1 < room_) first_[run - 1].end = column;
    count_ += __popc(all);
  }
  __device__ __forceinline__ int count() const { return count_; }

 private:
  shared::MaskRun* first_;
  long long room_;
  int count_ = 0;
};

/// The classes of a window's columns, in shared memory.
struct Window {
  Class classes[shared::kMaskWindow];
  unsigned short open[shared::kMaskWindow];
  int open_count;
};

/// All threads of the CTA.
__device__ __forceinline__ void classify(const Row& row, int begin, int columns, Window& window) {
  constexpr int kLanes = 32, kWarps = shared::kMaskThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  __syncthreads();  // the window before has been read
  if (threadIdx.x == 0) window.open_count = 0;
  __syncthreads();
  const int supers = (columns + shared::kMaskSuper - 1) / shared::kMaskSuper;
  const auto end_of = [&](int super) {
    return begin + static_cast<int>(shared::smaller(columns, (super + 1) * shared::kMaskSuper));
  };
  // Every warp asks about all of them: cheaper than to wait for one.
  const Class own = lane < supers ? row.ask(begin + lane * shared::kMaskSuper, end_of(lane)) : Class::empty;
  for (int super = warp; super < supers; super += kWarps) {
    Class found = static_cast<Class>(__shfl_sync(~0U, static_cast<int>(own), super));
    const int column = super * shared::kMaskSuper + lane;
    if (column >= columns) continue;
    if (found == Class::open) found = row.ask(begin + column, begin + column + 1);
    window.classes[column] = found;
    if (found == Class::open) window.open[atomicAdd(&window.open_count, 1)] = static_cast<unsigned short>(column);
  }
  __syncthreads();
  for (int i = warp; i < window.open_count; i += kWarps) {
    const int column = window.open[i];
    const Class found = row.evaluate(begin + column);
    if (lane == 0) window.classes[column] = found;
  }
  __syncthreads();
}

/// One row: returns its number of runs, to the first warp.
__device__ __forceinline__ int find_runs(const MaskRowsParams& params, int number, shared::MaskRun* first,
                                         long long room) {
  constexpr int kLanes = 32;
  __shared__ Window window;
  __shared__ Row row;
  row.set(params, number);
  const bool first_warp = threadIdx.x < kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  Runs runs(first, room);
  Class before = Class::empty;
  for (int begin = 0; begin < row.matrix.columns; begin += shared::kMaskWindow) {
    const int columns = static_cast<int>(shared::smaller(row.matrix.columns - begin, shared::kMaskWindow));
    const Class whole = row.ask(begin, begin + columns);
    if (whole != Class::open) {
      if (first_warp) runs.add(begin, before, whole, lane == 0);
      before = whole;
      continue;
    }
    classify(row, begin, columns, window);
    for (int at = 0; first_warp && at < columns; at += kLanes) {
      const int column = at + lane;
      const bool there = column < columns;
      const Class here = there ? window.classes[column] : Class::empty;
      const Class left = column == 0 ? before : there ? window.classes[column - 1] : Class::empty;
      runs.add(begin + column, left, here, there);
    }
    before = window.classes[columns - 1];
  }
  if (first_warp) runs.add(row.matrix.columns, before, Class::empty, lane == 0);
  return runs.count();
}

}  // namespace heddle::mask_rows

namespace heddle {

extern "C" __global__ void __launch_bounds__(shared::kMaskThreads)
    zone_groups(const __grid_constant__ shared::MaskRowsParams params) {
  const shared::MaskZone& zone = params.zones[blockIdx.y];
  constexpr int kWarps = shared::kMaskThreads / 32;
  const long long all = static_cast<long long>(zone.slices) * zone.groups;
  const long long step = static_cast<long long>(gridDim.x) * kWarps;
  for (long long i = static_cast<long long>(blockIdx.x) * kWarps + threadIdx.x / 32; i < all; i += step) {
    zone_group_of(static_cast<int>(blockIdx.y), zone, static_cast<int>(i / zone.groups),
                  static_cast<int>(i % zone.groups));
  }
}

extern "C" __global__ void __launch_bounds__(shared::kScanThreads)
    zone_trees(const __grid_constant__ shared::MaskRowsParams params) {
  const shared::MaskZone& zone = params.zones[blockIdx.y];
  for (int slice = static_cast<int>(blockIdx.x); slice < zone.slices; slice += static_cast<int>(gridDim.x)) {
    zone_tree_of(static_cast<int>(blockIdx.y), zone, slice);
  }
}

/// With runs: writes those of row r from offset[r] on. Without: leaves their number in offset[r + 1].
extern "C" __global__ void __launch_bounds__(shared::kMaskThreads)
    find_rows(const __grid_constant__ shared::MaskRowsParams params) {
  const int row = static_cast<int>(blockIdx.x);
  const bool writes = params.runs != nullptr;
  const long long first = writes ? params.offset[row] : 0;
  const int count = mask_rows::find_runs(params, row, writes ? params.runs + first : nullptr, params.capacity - first);
  if (threadIdx.x == 0 && !writes) params.offset[row + 1] = count;
}

/// Replaces counts by their sums up to each.
extern "C" __global__ void __launch_bounds__(shared::kScanThreads)
    scan_counts(const __grid_constant__ shared::MaskRowsParams params) {
  __shared__ long long sums[shared::kScanThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  long long before = 0;
  if (threadIdx.x == 0) params.offset[0] = 0;
  for (int begin = 0; begin < params.rows; begin += shared::kScanThreads) {
    const int row = begin + static_cast<int>(threadIdx.x);
    long long sum = row < params.rows ? params.offset[row + 1] : 0;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const long long left = __shfl_up_sync(~0U, sum, distance);
      if (lane >= distance) sum += left;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    long long all = 0;
    for (unsigned i = 0; i < shared::kScanThreads / 32; ++i) {
      if (i == warp) sum += before + all;
      all += sums[i];
    }
    if (row < params.rows) params.offset[row + 1] = sum;
    before += all;
    __syncthreads();
  }
}

}  // namespace heddle
