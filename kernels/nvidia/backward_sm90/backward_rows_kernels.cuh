// The kernels around backward_sm90, over blocks of 64 queries of one head, a CTA each:
//
//   backward_rows        lse in powers of two, and delta = sum over d of dO o, less d_lse, in the order of
//                        shared/backward_rows.h; zeros for dQ's sums or their ring, for
//                        who adds to them next, and for the number of tiles drawn; each block's
//                        share of d_sinks
//   backward_d_q         dq of dQ's sums, where they are no ring
//   backward_sinks       d_sinks: a warp a head, the blocks' shares in a fixed order
//
// A row that attends nothing (lse = -inf), and a place without a row, get lse = +inf and delta = 0: e^(t - lse) is 0
// then, whatever t is that is below +inf. In a block that is flagged as far (lse in two words) they get first = 0 and
// low = +inf.
//
// Included last by a generated source, which defines kConfig, a BackwardSm90Config.
#pragma once

#include "backward_sm90/d_q_output.cuh"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "fragments/output_elements.cuh"
#include "mods/captures.cuh"
#include "ptx/math.cuh"

namespace heddle {

using shared::BackwardRowsParams;
using shared::Normalizer;
using shared::StorageType;

template <StorageType kType, bool kF16>
struct StorageOf {
  using Type = ops::Bf16;
};
template <>
struct StorageOf<StorageType::same, true> {
  using Type = ops::F16;
};
template <bool kF16>
struct StorageOf<StorageType::f16, kF16> {
  using Type = ops::F16;
};
template <bool kF16>
struct StorageOf<StorageType::f32, kF16> {
  using Type = ops::F32;
};
template <bool kF16>
struct StorageOf<StorageType::f64, kF16> {
  using Type = ops::F64;
};
template <bool kF16>
struct StorageOf<StorageType::e4m3, kF16> {
  using Type = ops::E4m3;
};
template <bool kF16>
struct StorageOf<StorageType::e5m2, kF16> {
  using Type = ops::E5m2;
};

template <class Storage>
__device__ __forceinline__ float element(const void* row, int column) {
  return Storage::value(ops::read_if<Storage::kRead>(
      reinterpret_cast<unsigned long long>(row) + static_cast<unsigned long long>(column) * Storage::kApart, true));
}

/// Address of a row of a tensor whose elements have `bytes` bytes.
__device__ __forceinline__ const char* row_of(const shared::RowInput& of, int bytes, int batch, int head, int row) {
  return static_cast<const char*>(of.data) + (batch * of.stride[0] + head * of.stride[1] + row * of.stride[2]) * bytes;
}

inline constexpr int kLanesOfRow = 16;

/// One lane's share of the sum of dO o over a row. `skips_zeros`: an o of 0 counts for nothing, whatever dO is.
template <auto kConfig>
__device__ __forceinline__ float product_of_row(const char* o, const char* d_o, int lane, bool skips_zeros) {
  using O = typename StorageOf<kConfig.o_type, kConfig.f16>::Type;
  using D = typename StorageOf<StorageType::same, kConfig.f16>::Type;
  float sum = 0;
  const auto add = [&](float of_o, float of_d_o) { sum += skips_zeros && of_o == 0 ? 0.0F : of_o * of_d_o; };
  if constexpr (kConfig.vectorised_rows) {
    static_assert(!kConfig.vectorised_rows || kConfig.o_type == StorageType::same);
    for (int column = 8 * lane; column < kConfig.v_dim; column += 8 * kLanesOfRow) {
      const uint4 eight = *reinterpret_cast<const uint4*>(o + 2 * column),
                  others = *reinterpret_cast<const uint4*>(d_o + 2 * column);
      const unsigned x[4] = {eight.x, eight.y, eight.z, eight.w}, y[4] = {others.x, others.y, others.z, others.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        add(O::value(static_cast<unsigned short>(x[i])), D::value(static_cast<unsigned short>(y[i])));
        add(O::value(x[i] >> 16), D::value(y[i] >> 16));
      }
    }
  } else {
    for (int column = lane; column < kConfig.v_dim; column += kLanesOfRow)
      add(element<O>(o, column), element<D>(d_o, column));
  }
#pragma unroll
  for (int distance = kLanesOfRow / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  return sum;
}

struct BackwardRow {
  float lse, delta;  // lse in powers of two
  float sink;        // its share of d_sinks
  float first, low;  // lse in two words: the same lse in a block that is far
  bool far;
};

/// Adds the second word of lse to a row that attends something; numbers.lse has the first.
__device__ __forceinline__ void set_both_words(BackwardRow& numbers, float lse, float rest, float unit) {
  constexpr double kLog2E = 1.44269504088896341;
  // With rest = 0 lse may be the row's sink: it keeps the product that the sink's power of two has, so that their
  // difference is 0.
  if (rest != 0) numbers.lse = static_cast<float>((static_cast<double>(lse) + static_cast<double>(rest)) * kLog2E);
  numbers.far = fabsf(lse) > shared::kLargestNearLse;
  numbers.first = lse / unit;
  if (!(fabsf(numbers.first) < ptx::infinity())) numbers.first = 0;
  const double exact = static_cast<double>(numbers.first) * static_cast<double>(unit);
  numbers.low = static_cast<float>((static_cast<double>(lse) - exact + static_cast<double>(rest)) * kLog2E);
}

/// lse and delta of a row of a block; by all lanes of a warp, sixteen for each of two rows.
template <auto kConfig>
__device__ __forceinline__ BackwardRow numbers_of_row(const BackwardRowsParams& params, const shared::RowBlock& block,
                                                      int head, int row, int lane) {
  constexpr int kOBytes = StorageOf<kConfig.o_type, kConfig.f16>::Type::kApart;
  const bool live = row < block.live;
  const int own = block.row + (live ? row : 0);
  const float lse = *reinterpret_cast<const float*>(row_of(params.lse, 4, block.batch, head, own));
  float sink = -ptx::infinity();
  if constexpr (kConfig.sinks) sink = params.sinks.data[head * params.sinks.stride];
  // If a row attends its sink alone, its o is 0, and its dO may be anything.
  const bool sunk = kConfig.sinks && lse == sink;
  float delta = product_of_row<kConfig>(row_of(params.o, kOBytes, block.batch, head, own),
                                        row_of(params.d_o, 2, block.batch, head, own), lane, sunk);
  if (params.d_lse.data != nullptr) {
    delta -= *reinterpret_cast<const float*>(row_of(params.d_lse, 4, block.batch, head, own));
  }
  const bool attends = live && lse != -ptx::infinity();
  BackwardRow numbers = {ptx::infinity(), 0, 0, 0, ptx::infinity(), false};
  if (attends) {
    numbers.lse = lse * ptx::kLog2E;
    numbers.delta = delta;
    numbers.sink = kConfig.sinks ? -ptx::exp2_fast((sink - lse) * ptx::kLog2E) * delta : 0.0F;
    if (sunk) numbers.sink = -delta;  // infinite sinks too
    if constexpr (kConfig.lse_rest) {
      const float rest = *reinterpret_cast<const float*>(row_of(params.lse_rest, 4, block.batch, head, own));
      set_both_words(numbers, lse, rest, params.unit);
      const float below = sunk ? 0 : sink - lse;
      numbers.sink = kConfig.sinks ? -ptx::exp2_fast((below - rest) * ptx::kLog2E) * delta : 0.0F;
    }
  }
  return numbers;
}

/// lse in two words: whether the block is far, and what then stands in the place of its lse. By all threads, the first
/// of which have a row each.
__device__ __forceinline__ void store_far_block(float* lse, const BackwardRow* rows) {
  __syncthreads();  // rows have been left
  const int row = static_cast<int>(threadIdx.x);
  if (row >= shared::kBlockRows) return;
  const bool far = __ballot_sync(~0U, rows[row].far || rows[row ^ 32].far) != 0;  // a warp sees all rows
  if (row == 0) lse[shared::kFlagOffset] = __int_as_float(far ? shared::kStepFar : 0);
  if (!far) return;
  lse[shared::offset_of_row(row)] = rows[row].first;
  lse[2 * shared::kBlockNumbers + shared::low_of_row(row)] = rows[row].low;
}

/// dQ's sums of a block and head, or of a unit of the ring, become zeros.
template <auto kConfig>
__device__ __forceinline__ void zero_unit(const BackwardRowsParams& params, long long unit) {
  if constexpr (kConfig.ordered) {
    if (threadIdx.x < kConfig.d_q_parts()) params.turns[unit * kConfig.d_q_parts() + threadIdx.x] = 0;
  }
  float4* to = reinterpret_cast<float4*>(params.d_q + unit * (kConfig.panels() * shared::kPartFloats));
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.panels() * shared::kPartFloats / 4;
       i += shared::kRowThreads) {
    to[i] = make_float4(0, 0, 0, 0);
  }
}

/// All CTAs together.
__device__ __forceinline__ void zero_counters(unsigned* counters, long long count, const BackwardRowsParams& params,
                                              long long number) {
  const long long ctas = static_cast<long long>(params.block_count) * params.q_heads;
  for (long long i = number * shared::kRowThreads + threadIdx.x; i < count; i += ctas * shared::kRowThreads) {
    counters[i] = 0;
  }
}

/// dQ's ring: the sums become zeros, and so do what counts their adds and their conversions.
template <auto kConfig>
__device__ __forceinline__ void zero_ring(const BackwardRowsParams& params, long long number) {
  const long long ctas = static_cast<long long>(params.block_count) * params.q_heads;
  for (long long unit = number; unit < params.ring_units; unit += ctas) {
    zero_unit<kConfig>(params, unit);
  }
  zero_counters(params.ring_counters, params.ring_counts, params, number);
}

}  // namespace heddle

extern "C" __global__ void __launch_bounds__(heddle::shared::kRowThreads)
    backward_rows(const __grid_constant__ heddle::shared::BackwardRowsParams params) {
  using namespace heddle;
  const shared::RowBlock block = params.blocks[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const long long number = static_cast<long long>(blockIdx.x) * params.q_heads + head;
  if (number == 0 && threadIdx.x == 0) *params.drawn = 0;
  if constexpr (kConfig.shares) zero_counters(params.share_counters, params.share_counts, params, number);
  if constexpr (kConfig.ring) {
    zero_ring<kConfig>(params, number);
  } else if constexpr (kConfig.d_q) {
    zero_unit<kConfig>(params, number);
  }
  if constexpr (kConfig.normalizer == Normalizer::softmax) {
    __shared__ float shares[shared::kBlockRows];
    __shared__ BackwardRow rests[kConfig.lse_rest ? shared::kBlockRows : 1];
    float* const lse = params.rows + number * shared::block_numbers(kConfig.lse_rest);
    const int lane = static_cast<int>(threadIdx.x % kLanesOfRow);
    if (block.live > 0) {
      for (int row = static_cast<int>(threadIdx.x) / kLanesOfRow; row < shared::kBlockRows;
           row += shared::kRowThreads / kLanesOfRow) {
        const BackwardRow own = numbers_of_row<kConfig>(params, block, head, row, lane);
        if (lane == 0) {
          lse[shared::offset_of_row(row)] = own.lse;
          lse[shared::kBlockNumbers + shared::offset_of_row(row)] = own.delta;
          shares[row] = own.sink;
          if constexpr (kConfig.lse_rest) {
            rests[row] = own;
          }
        }
      }
      if constexpr (kConfig.lse_rest) store_far_block(lse, rests);
    }
    if constexpr (kConfig.sinks) {
      __syncthreads();
      if (threadIdx.x == 0) {
        float sum = 0;
        for (int row = 0; row < block.live; ++row) sum += shares[row];
        params.sink_parts[number] = sum;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(heddle::shared::kRowThreads)
    backward_d_q(const __grid_constant__ heddle::shared::BackwardRowsParams params) {
  using namespace heddle;
  const shared::RowBlock block = params.blocks[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const float* const sums = params.d_q + (static_cast<long long>(blockIdx.x) * params.q_heads + head) *
                                             (kConfig.panels() * shared::kPartFloats);
  for (int i = static_cast<int>(threadIdx.x); i < kConfig.panels() * 256; i += shared::kRowThreads) {
    const int thread = i % 128, group = i / 128;  // of 32 columns
    const float4* from = reinterpret_cast<const float4*>(sums) + group * 4 * 128 + thread;
    float own[16];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 four = from[j * 128];
      own[4 * j] = four.x;
      own[4 * j + 1] = four.y;
      own[4 * j + 2] = four.z;
      own[4 * j + 3] = four.w;
    }
    DqRows<kConfig> rows;
    rows.set(params.d_q_out, block, head, thread);
    rows.store(params.d_q_scale, 32 * group, own);
  }
}

extern "C" __global__ void __launch_bounds__(32)
    backward_sinks(const __grid_constant__ heddle::shared::BackwardRowsParams params) {
  using namespace heddle;
  using Elements = OutputElements<kConfig.d_sinks_type, kConfig.f16>;
  const int head = static_cast<int>(blockIdx.x);
  float sum = 0;
  for (int block = static_cast<int>(threadIdx.x); block < params.block_count; block += 32) {
    sum += params.sink_parts[static_cast<long long>(block) * params.q_heads + head];
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  if (threadIdx.x == 0) {
    static_cast<typename Elements::One*>(params.d_sinks.data)[head * params.d_sinks.stride[0]] =
        Elements::first(Elements::pair(sum, 0.0F));
  }
}
