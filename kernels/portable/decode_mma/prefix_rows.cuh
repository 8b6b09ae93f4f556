// Rows of shared keys and rows of own keys, by two kernels that run at the same time (shared_keys.cuh, decode.cuh). Both
// leave theirs in the workspace; a word of each tile of each sequence counts both, and the CTA that comes last joins
// them.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/parts.cuh"
#include "portable/decode_mma/prefixes.cuh"

namespace heddle::portable {

/// Where rows stand, and how they are joined, by kConfig of either kernel.
template <auto kConfig, class F>
class PrefixRows {
  static constexpr int kRowFloats = shared::decode_row_floats(kConfig), kOwnRows = kConfig.own_rows();
  static constexpr int kPart = shared::prefix_rows(kConfig) * kRowFloats;
  using Weights = RowWeights<kConfig, F>;

 public:
  static constexpr int kRun = kRunOfPart<float>, kRuns = kConfig.v_columns() / kRun;  // of a row
  /// A row's maximum and sum, and neighbours of O.
  struct Part {
    float m, l, o[kRun];
  };

  /// `number`: of the tile among those of each sequence.
  __device__ __forceinline__ PrefixRows(const shared::DecodeMmaParams& params, int number)
      : params_(params), number_(number) {}

  /// Counts both kernels.
  __device__ __forceinline__ ArrivalWord<F> word(int batch) const {
    return {params_.joined_words + place(batch), params_.launch};
  }
  /// Counts the gangs that share a tile of shared keys, the first of which is `from`.
  __device__ __forceinline__ ArrivalWord<F> word_of_gangs(int from) const {
    return {params_.prefix_words + place(from), params_.launch};
  }
  /// The gangs that have left rows of the keys that sequences share of which `first` is the first one.
  __device__ __forceinline__ shared::PrefixSpan& gangs(int first) const { return params_.prefix_spans[place(first)]; }

  /// Where a sequence's own tile leaves a row.
  __device__ __forceinline__ RowState<float> own(int batch, int row) const { return joined(batch, 1, row); }
  /// What `gang`, one of `gangs`, leaves of a sequence's row.
  __device__ __forceinline__ RowState<float> left_by(const shared::PrefixSpan& gangs, int gang, int batch,
                                                     int row) const {
    if (gangs.from == gangs.to) return joined(batch, 0, row);
    // A gang shares two tiles, one that it began with and one that goes on.
    const long long part = place(gang) * 2 + (gang == gangs.from ? 1 : 0);
    return row_of_part<kConfig>(params_.prefix_parts + part * kPart,
                                batch % kConfig.prefix_sequences * kOwnRows + row);
  }

  __device__ __forceinline__ static Part nothing() {
    Part part = {-F::infinity(), 0, {}};
    return part;
  }
  /// All that gangs have left of a run of a row.
  __device__ __forceinline__ Part of_shared(const shared::PrefixSpan& gangs, int batch, int row, int column,
                                            const Weights& weights) const {
    constexpr int kAtOnce = 8;
    Part all = nothing();
#pragma unroll 1
    for (int first = gangs.from; first <= gangs.to; first += kAtOnce) {
      Part parts[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        parts[n] = nothing();
        if (first + n <= gangs.to) parts[n] = read(left_by(gangs, first + n, batch, row), column);
      }
      const float before = all.m;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) all.m = F::larger(all.m, parts[n].m);
      const float of_before = weights.factor_between(before, all.m);
      all.l *= of_before;
#pragma unroll
      for (int e = 0; e < kRun; ++e) all.o[e] *= of_before;
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float factor = weights.factor_between(parts[n].m, all.m);
        all.l = F::fused(parts[n].l, factor, all.l);
#pragma unroll
        for (int e = 0; e < kRun; ++e) all.o[e] = F::fused(parts[n].o[e], factor, all.o[e]);
      }
    }
    return all;
  }
  /// Calls visit(sums, weights) for the run of a row of which `before` is of the shared keys: sums of all keys.
  template <class Visit>
  __device__ __forceinline__ void join(const Part& before, int batch, int row, int column, Weights weights,
                                       Visit&& visit) const {
    const Part own = read(this->own(batch, row), column);
    const float top = F::larger(own.m, before.m), of_own = weights.factor_between(own.m, top),
                of_before = weights.factor_between(before.m, top);
    float o[kRun];
#pragma unroll
    for (int e = 0; e < kRun; ++e) o[e] = F::fused(own.o[e], of_own, before.o[e] * of_before);
    weights.m[0] = top;
    weights.l[0] = F::fused(own.l, of_own, before.l * of_before);
    visit(o, weights);
  }

 private:
  __device__ __forceinline__ long long place(int batch) const {
    return static_cast<long long>(batch) * params_.tiles + number_;
  }
  __device__ __forceinline__ RowState<float> joined(int batch, int part, int row) const {
    const long long at = (place(batch) * shared::kJoinedParts + part) * kOwnRows + row;
    return row_of_part<kConfig>(params_.joined_rows + at * kRowFloats, 0);
  }
  __device__ __forceinline__ static Part read(const RowState<float>& from, int column) {
    struct alignas(16) Run {
      float x[kRun];
    };
    struct alignas(8) Numbers {
      float m, l;
    };
    const Numbers numbers = *reinterpret_cast<const Numbers*>(from.numbers);
    const Run run = *reinterpret_cast<const Run*>(from.o + column);
    Part part = {numbers.m, numbers.l, {}};
#pragma unroll
    for (int e = 0; e < kRun; ++e) part.o[e] = run.x[e];
    return part;
  }

  const shared::DecodeMmaParams& params_;
  int number_;
};

/// The rows of a sequence's own tile.
template <auto kConfig, class F>
class OwnRowsBehind {
  using Rows = PrefixRows<kConfig, F>;
  using Weights = RowWeights<kConfig, F>;

 public:
  /// When the tile begins. `shares`: its sequence shares keys. If the rows of these are there, the thread reads what it
  /// will join first.
  __device__ __forceinline__ OwnRowsBehind(const shared::DecodeMmaParams& params, int number, const Tile<kConfig>& tile,
                                           bool shares, const Weights& weights)
      : rows_(params, number), batch_(tile.batch), is_there_(false), before_(Rows::nothing()) {
    if (!shares) return;
    const ArrivalWord<F> word = rows_.word(batch_);
    is_there_ = word.has(1);
    const int row = F::thread() / Rows::kRuns;
    if (is_there_ && row < kConfig.live_rows && tile.has(row)) {
      before_ = rows_.of_shared(gangs(), batch_, row, F::thread() % Rows::kRuns * Rows::kRun, weights);
    }
    if (!is_there_ && F::thread() == 0) word.begin(word.found());
  }

  __device__ __forceinline__ RowState<float> row(int row) const { return rows_.own(batch_, row); }

  /// By all threads, behind what they have left: if the rows of shared keys are there, calls visit(row, column, sums,
  /// weights) as merge_parts() does. `last`: a word in shared memory.
  template <class Visit>
  __device__ __forceinline__ void join(int& last, const Tile<kConfig>& tile, const Weights& weights,
                                       Visit&& visit) const {
    F::barrier();
    if (F::thread() == 0) last = rows_.word(batch_).arrives_last(shared::kJoinedParts) ? 1 : 0;
    F::barrier();
    if (last == 0) return;
    for (int i = F::thread(); i < kConfig.live_rows * Rows::kRuns; i += F::threads()) {
      const int row = i / Rows::kRuns, column = i % Rows::kRuns * Rows::kRun;
      if (!tile.has(row)) continue;
      const bool is_read = is_there_ && i == F::thread();
      const auto before = is_read ? before_ : rows_.of_shared(gangs(), batch_, row, column, weights);
      rows_.join(before, batch_, row, column, weights,
                 [&](const auto& sums, const auto& merged) { visit(row, column, sums, merged); });
    }
  }

 private:
  __device__ __forceinline__ shared::PrefixSpan gangs() const {
    return rows_.gangs(Prefixes<kConfig, F>::first(batch_));
  }

  Rows rows_;
  int batch_;
  bool is_there_;
  typename Rows::Part before_;
};

struct NoRowsBehind {
  template <class... Arguments>
  __device__ __forceinline__ explicit NoRowsBehind(const Arguments&...) {}
};
template <auto kConfig, class F, bool kThere = kConfig.shares_elsewhere()>
struct ChosenRowsBehind {
  using Type = NoRowsBehind;
};
template <auto kConfig, class F>
struct ChosenRowsBehind<kConfig, F, true> {
  using Type = OwnRowsBehind<kConfig, F>;
};
/// OwnRowsBehind, if the kernel has any.
template <auto kConfig, class F>
using RowsBehind = typename ChosenRowsBehind<kConfig, F>::Type;

}  // namespace heddle::portable
