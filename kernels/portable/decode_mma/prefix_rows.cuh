// Rows of shared keys that the kernel of these (shared_keys.cuh) leaves in the workspace to the sequences' own tiles.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/parts.cuh"
#include "portable/decode_mma/prefixes.cuh"

namespace heddle::portable {

/// Where they stand: of a tile that one gang has, at each sequence's place; else at a place of each gang. Both kernels
/// find them so, by kConfig of either.
template <auto kConfig>
class PrefixPlaces {
  static constexpr int kRowFloats = shared::decode_row_floats(kConfig), kOwnRows = kConfig.own_rows();
  static constexpr int kPart = shared::prefix_rows(kConfig) * kRowFloats;

 public:
  /// `number`: of the tile among those of each sequence.
  __device__ __forceinline__ PrefixPlaces(const shared::DecodeMmaParams& params, int number)
      : params_(params), number_(number) {}

  /// Where `gang`, one of `gangs`, leaves a sequence's row.
  __device__ __forceinline__ RowState<float> row(const shared::PrefixSpan& gangs, int gang, int batch, int row) const {
    if (gangs.from == gangs.to) {
      const long long at = (static_cast<long long>(batch) * params_.tiles + number_) * kOwnRows + row;
      return row_of_part<kConfig>(params_.prefix_rows + at * kRowFloats, 0);
    }
    // A gang shares two tiles, one that it began with and one that goes on.
    const long long part = (static_cast<long long>(gang) * params_.tiles + number_) * 2 + (gang == gangs.from ? 1 : 0);
    return row_of_part<kConfig>(params_.prefix_parts + part * kPart, batch % kConfig.prefix_sequences * kOwnRows + row);
  }

 private:
  const shared::DecodeMmaParams& params_;
  int number_;
};

/// The rows of a sequence's own tile, to be joined with those of the keys that it shares.
template <auto kConfig, class F>
class PrefixRows {
  static constexpr int kRun = kRunOfPart<float>, kRuns = kConfig.v_columns() / kRun;
  using Weights = RowWeights<kConfig, F>;

 public:
  /// `shares`: the tile's sequence shares keys. Waits for the kernel of these then, and reads what merge_parts() visits
  /// by the thread first: when the tile ends that is there.
  __device__ __forceinline__ PrefixRows(const shared::DecodeMmaParams& params, int number, const Tile<kConfig>& tile,
                                        bool shares, const Weights& weights)
      : places_(params, number), gangs_{0, -1}, batch_(tile.batch) {
    first_ = nothing();
    if (!shares) return;
    F::wait_for_previous();
    gangs_ = params.prefix_spans[Prefixes<kConfig, F>::first(batch_)];
    const int row = F::thread() / kRuns;
    if (row < kConfig.live_rows && tile.has(row)) first_ = found(row, F::thread() % kRuns * kRun, weights);
  }

  /// Calls visit(row, column, sums, weights) as merge_parts() does, of the rows' sums of all keys. `own_sums`, `own`:
  /// of the own ones.
  template <class Visit>
  __device__ __forceinline__ void join(int row, int column, const float (&own_sums)[kRun], const Weights& own,
                                       Visit&& visit) const {
    constexpr bool kAllAreFirst = kConfig.live_rows * kRuns <= kConfig.threads();
    const Part before = kAllAreFirst || row * kRuns + column / kRun == F::thread() ? first_ : found(row, column, own);
    Weights weights = own;
    const float top = F::larger(own.m[0], before.m), of_own = own.factor_between(own.m[0], top),
                of_before = own.factor_between(before.m, top);
    float o[kRun];
#pragma unroll
    for (int e = 0; e < kRun; ++e) o[e] = F::fused(own_sums[e], of_own, before.o[e] * of_before);
    weights.m[0] = top;
    weights.l[0] = F::fused(own.l[0], of_own, before.l * of_before);
    visit(row, column, o, weights);
  }

 private:
  /// A row's maximum and sum, and neighbours of O.
  struct Part {
    float m, l, o[kRun];
  };
  __device__ __forceinline__ static Part nothing() {
    Part part = {-F::infinity(), 0, {}};
    return part;
  }
  /// All that gangs have left of a run of a row.
  __device__ __forceinline__ Part found(int row, int column, const Weights& weights) const {
    struct alignas(16) Run {
      float x[kRun];
    };
    struct alignas(8) Numbers {
      float m, l;
    };
    constexpr int kAtOnce = 8;
    Part all = nothing();
#pragma unroll 1
    for (int first = gangs_.from; first <= gangs_.to; first += kAtOnce) {
      Numbers numbers[kAtOnce];
      Run runs[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        numbers[n] = {-F::infinity(), 0};
        runs[n] = {};
        if (first + n <= gangs_.to) {
          const RowState<float> from = places_.row(gangs_, first + n, batch_, row);
          numbers[n] = *reinterpret_cast<const Numbers*>(from.numbers);
          runs[n] = *reinterpret_cast<const Run*>(from.o + column);
        }
      }
      const float before = all.m;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) all.m = F::larger(all.m, numbers[n].m);
      const float of_before = weights.factor_between(before, all.m);
      all.l *= of_before;
#pragma unroll
      for (int e = 0; e < kRun; ++e) all.o[e] *= of_before;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float factor = weights.factor_between(numbers[n].m, all.m);
        all.l = F::fused(numbers[n].l, factor, all.l);
#pragma unroll
        for (int e = 0; e < kRun; ++e) all.o[e] = F::fused(runs[n].x[e], factor, all.o[e]);
      }
    }
    return all;
  }

  PrefixPlaces<kConfig> places_;
  shared::PrefixSpan gangs_;
  int batch_;
  Part first_;
};

struct NoPrefixRows {
  template <class... Arguments>
  __device__ __forceinline__ explicit NoPrefixRows(const Arguments&...) {}
};
template <auto kConfig, class F, bool kThere = kConfig.shares_elsewhere()>
struct ChosenPrefixRows {
  using Type = NoPrefixRows;
};
template <auto kConfig, class F>
struct ChosenPrefixRows<kConfig, F, true> {
  using Type = PrefixRows<kConfig, F>;
};
template <auto kConfig, class F>
using PrefixRowsOf = typename ChosenPrefixRows<kConfig, F>::Type;

}  // namespace heddle::portable
