// A consumer's rows of a tile once all their keys have been seen: o, lse, maxima; and before, how they come to another
// maximum.
#pragma once

#include "forward_sm90/consumer_tile.cuh"
#include "forward_sm90/tma_output.cuh"
#include "fragments/consumer_weights.cuh"
#include "fragments/lane_reductions.cuh"
#include "fragments/row_stores.cuh"
#include "fragments/sink.cuh"

namespace heddle {

template <auto kConfig, class Params>
class ConsumerRows : protected ConsumerTile<kConfig, Params> {
 protected:
  using Tile = ConsumerTile<kConfig, Params>;
  using Tile::kV, Tile::kSoftmax, Tile::kMapped, Tile::kFoldsSafely, Tile::kNatural, typename Tile::RowWeights,
      Tile::memory_, Tile::o_map_, Tile::params_, Tile::warpgroup_, Tile::suspect_, Tile::softmax_, Tile::s_, Tile::o_,
      Tile::own_origin, Tile::own_sequence, Tile::own_factors, Tile::own_sink;

 public:
  using Tile::Tile;

 protected:
  /// P and O are brought to m. `before`: m before the step.
  __device__ __forceinline__ void settle(const float (&before)[2]) {
    float rescale[2];
    softmax_.settle(s_, before, rescale, softmax_.safe ? safe_unit() : 1.0F);
#pragma unroll
    for (int j = 0; j < kV / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[4 * j + e] *= rescale[e / 2];
    }
  }

  /// A safe tile's maximum times this is in powers of two.
  __device__ __forceinline__ float safe_unit() const {
    if constexpr (kNatural) return ptx::kLog2E;
    if constexpr (!kSoftmax || kFoldsSafely || kConfig.capped) return 1;
    return kMapped ? ptx::kLog2E : params_.scale_log2;
  }
  /// A safe tile's maximum times this is natural.
  __device__ __forceinline__ float safe_natural_unit() const {
    if constexpr (kNatural) return 1;
    if constexpr (kFoldsSafely || kConfig.capped) return ptx::kLn2;
    return kMapped ? 1.0F : params_.scale;
  }
  /// A row's m in powers of two, as its sum knows it.
  __device__ __forceinline__ float power_of_row(int r) const {
    const float m = softmax_.rows.m[r];
    return softmax_.safe ? fmaf(m, safe_unit(), -RowWeights::kSafeHeadroom) : m;
  }
  __device__ __forceinline__ float lse_of_row(float m, float l) const {
    if (!softmax_.safe) return ptx::kLn2 * (m + ptx::log2_fast(l));
    // A term that in_units() kept finite. A sum that is NaN stays.
    if (kFoldsSafely && fabsf(m) == kLargestTerm) return fmaf(l, 0.0F, m);
    return fmaf(m, safe_natural_unit(), ptx::kLn2 * (ptx::log2_fast(l) - RowWeights::kSafeHeadroom));
  }
  __device__ __forceinline__ NaturalUnit natural_unit() const {
    return softmax_.safe ? NaturalUnit{safe_natural_unit(), 0, RowWeights::kSafeHeadroom}
                         : NaturalUnit{params_.natural[0], params_.natural[1], 0};
  }

  /// The rows of a tile have seen all their keys: `factor` is what O is to be multiplied by.
  __device__ __forceinline__ void close_rows(unsigned tile, float (&factor)[2]) {
    if constexpr (kSoftmax) {
      close_softmax(tile, factor);
    } else {
      for (int r = 0; r < 2; ++r) factor[r] = softmax_.factor(r);
      suspect_ = RowWeights::kOwnPowers && !softmax_.safe;
    }
    if constexpr (kConfig.dropped) {
      for (int r = 0; r < 2; ++r) factor[r] *= this->drops.factor();
    }
    if constexpr (kConfig.fp8()) {
      const float values = ptx::load_float(own_factors(tile) + shared::kFactorOfValues);
      factor[0] *= values;
      factor[1] *= values;
    }
  }

  /// 1 / l, and lse = m + ln l.
  __device__ __forceinline__ void close_softmax(unsigned tile, float (&factor)[2]) {
    const float l[2] = {quad_sum(softmax_.rows.l[0]), quad_sum(softmax_.rows.l[1])};
    factor[0] = l[0] > 0 ? ptx::reciprocal(l[0]) : l[0];  // NaN stays
    factor[1] = l[1] > 0 ? ptx::reciprocal(l[1]) : l[1];
    const TileOrigin at = own_origin(tile);
    suspect_ = !softmax_.safe && (kConfig.weighted || __any_sync(~0U, !((l[0] < kSuspicious) & (l[1] < kSuspicious))));
    if constexpr (kConfig.sinks && kConfig.lse_rest) {
      const float sink = own_sink(tile);
      const RowEndInTwo ends[2] = {end_with_sink_in_two(softmax_.rows.m[0], natural_unit(), l[0], sink),
                                   end_with_sink_in_two(softmax_.rows.m[1], natural_unit(), l[1], sink)};
      const float largest[2] = {ends[0].first.sunk ? kSuspicious : RowWeights::kLargestSum,
                                ends[1].first.sunk ? kSuspicious : RowWeights::kLargestSum};
      if (suspect_ && __any_sync(~0U, !((l[0] < largest[0]) & (l[1] < largest[1])))) repeat(tile);
      for (int r = 0; r < 2; ++r) factor[r] = ends[r].first.factor;
      store_own_lse(at, own_sequence(tile), threadIdx.x & 1 ? ends[1].first.lse : ends[0].first.lse);
      store_own_number(params_.lse_rest, at, own_sequence(tile), threadIdx.x & 1 ? ends[1].rest : ends[0].rest);
    } else if constexpr (kConfig.sinks) {
      const float sink = own_sink(tile);
      const RowEnd ends[2] = {end_with_sink(power_of_row(0), l[0], sink), end_with_sink(power_of_row(1), l[1], sink)};
      const float largest[2] = {ends[0].sunk ? kSuspicious : RowWeights::kLargestSum,
                                ends[1].sunk ? kSuspicious : RowWeights::kLargestSum};
      if (suspect_ && __any_sync(~0U, !((l[0] < largest[0]) & (l[1] < largest[1])))) repeat(tile);
      factor[0] = ends[0].factor;
      factor[1] = ends[1].factor;
      if constexpr (kConfig.lse) store_own_lse(at, own_sequence(tile), threadIdx.x & 1 ? ends[1].lse : ends[0].lse);
    } else {
      constexpr float kLargest = RowWeights::kLargestSum;
      if (suspect_ && __any_sync(~0U, !((l[0] < kLargest) & (l[1] < kLargest)))) repeat(tile);
      if constexpr (kConfig.lse) {
        // m is -inf if nothing attends.
        const bool lower = threadIdx.x & 1;
        const float lse = lse_of_row(lower ? softmax_.rows.m[1] : softmax_.rows.m[0], lower ? l[1] : l[0]);
        store_own_lse(at, own_sequence(tile), lse);
        if constexpr (kConfig.lse_rest) {
          const float m = lower ? softmax_.rows.m[1] : softmax_.rows.m[0], sum = lower ? l[1] : l[0];
          store_own_number(params_.lse_rest, at, own_sequence(tile), rest_of_lse(m, natural_unit(), sum, lse));
        }
      }
    }
    if constexpr (kConfig.max_scores) {
      // The tile is safe; a sum that is NaN knows of scores that a maximum does not.
      const bool lower = threadIdx.x & 1;
      const float m = lower ? softmax_.rows.m[1] : softmax_.rows.m[0], sum = lower ? l[1] : l[0];
      const int own_row = own_row_of_pair(at);
      const TileSequence own = own_sequence(tile);
      if ((threadIdx.x & 2) == 0 && own_row < own.q_len) {
        store_number(params_.max_scores, at, own.q_begin + own_row, sum == sum ? m * safe_natural_unit() : sum);
      }
    }
  }

  /// If four threads share two rows, the first two store one each: the even ones the upper row's.
  __device__ __forceinline__ int own_row_of_pair(const TileOrigin& at) const {
    return at.q_first + query_of_thread<kConfig>(warpgroup_) + (threadIdx.x & 1 ? 8 : 0);
  }
  __device__ __forceinline__ void store_own_lse(const TileOrigin& at, const TileSequence& own, float lse) const {
    const int own_row = own_row_of_pair(at);
    if ((threadIdx.x & 2) == 0 && own_row < own.q_len) store_lse(params_.outputs, at, own.q_begin + own_row, lse);
  }

  __device__ __forceinline__ void store_own_number(const shared::RowNumbers& out, const TileOrigin& at,
                                                   const TileSequence& own, float x) const {
    const int own_row = own_row_of_pair(at);
    if ((threadIdx.x & 2) == 0 && own_row < own.q_len) store_number(out, at, own.q_begin + own_row, x);
  }

  /// o = O / l.
  __device__ __forceinline__ void store_tile(unsigned tile, const float (&factor)[2]) {
    const TileOrigin at = own_origin(tile);
    if (suspect_ && !__all_sync(~0U, finite_o())) repeat(tile);
    if constexpr (kConfig.stores_o_by_threads()) {
      store_output_by_threads<kConfig>(params_.outputs, warpgroup_, at, own_sequence(tile), o_, factor);
    } else {
      store_output<kConfig>(memory_, o_map_, warpgroup_, at, own_sequence(tile), params_.tensors.q_len, o_, factor);
    }
  }

  // From this sum of weights on, large values may have overflowed O though the sum itself has not; a weight_mod may
  // make any of them large.
  static constexpr float kSuspicious = 16777216.0F;

  __device__ __forceinline__ bool finite_o() const {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < kV / 2; ++i) zero = fmaf(o_[i], 0.0F, zero);
    return zero == 0;
  }

  /// The producer will bring that tile again, safely.
  __device__ __forceinline__ void repeat(unsigned tile) const {
    // Predicated, not a branch: lanes that part here would cost every address of the loop its one value a warp.
    asm volatile(
        "{\n"
        ".reg .pred first;\n"
        "setp.eq.u32 first, %2, 0;\n"
        "@first red.shared.or.b32 [%0], %1;\n"
        "}" ::"r"(memory_.redo(tile)),
        "r"(1), "r"(threadIdx.x & 31)
        : "memory");
  }
};

}  // namespace heddle
