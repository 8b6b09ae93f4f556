// The steps of a tile whose blocks two warpgroups compute in turn (kConfig.takes_turns()). One computes the scores and
// the weights of a block, the other those of the next block; each multiplies all weights by columns of its own of the
// values. So softmax of one block runs beside products of another, and a warpgroup that has multiplied a block asks for
// its columns of the block that takes the place, without waiting for the other one. Weights pass through shared memory,
// and with them the maxima of the rows until that block, which both have in the order of the keys.
#pragma once

#include "portable/decode_mma/wide_rows.cuh"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

/// `Scores`: TileScores of the CTA. Warpgroups of keys and values apart: own_key_steps.cuh.
template <auto kConfig, class F, class Scores, bool kTurns = kConfig.takes_turns()>
class WarpgroupSteps {
  using Weights = RowWeights<kConfig, F>;

 public:
  __device__ __forceinline__ WarpgroupSteps(char* memory, Scores& scores, bool)
      : rows_(memory, scores),
        passed_(reinterpret_cast<float*>(memory + shared::decode_mma_memory(kConfig).passed)),
        scores_(scores) {}

  /// `count` units from `place` on. The first of them may have no key, if the sequence has none; the others have some.
  /// ahead.ask() asks for the next block that is not asked for yet, once for each unit.
  template <class Place, class Ahead, int kOutFragments>
  __device__ __forceinline__ void walk(const Tile<kConfig>& tile, const Place& place, int count,
                                       typename F::Stream& stream, Ahead& ahead, Weights& weights,
                                       typename F::Out (&o)[1][kOutFragments]) const {
    if (place.keys.begin(place.unit) >= place.keys.run(place.unit, tile.kv_len).end) {
      stream.arrives();
      ahead.ask();
      return copy(stream);
    }
    // Branches that differ in which products are in flight would end these, so the first and the last block stand
    // apart.
    typename F::Scores s[1][Scores::kKeyFragments];
    int i = 0;
    if (stream.has_turn()) {
      stream.arrives();
      F::begin_scores(s, stream);
      F::await_scores(s);
      multiply(tile, place.keys.begin(place.unit), stream, ahead, weights, s, o);
      i = 1;
    }
#pragma unroll 1
    for (; i + 1 < count; i += 2) {
      take(stream, ahead, weights, o);
      stream.arrives();
      F::begin_scores(s, stream);
      F::template await_values<1>(o);
      copy(stream);
      F::await_scores(s);
      multiply(tile, place.keys.begin(place.unit + i + 1), stream, ahead, weights, s, o);
    }
    if (i < count) {
      take(stream, ahead, weights, o);
      F::await_values(o);
      copy(stream);
    }
  }

 private:
  /// O += P V of the other warpgroup's block, which is the next one, in flight. Meanwhile the next block is asked for.
  template <class Ahead, class Out>
  __device__ __forceinline__ void take(typename F::Stream& stream, Ahead& ahead, Weights& weights, Out& o) const {
    const int block = stream.pass();
    stream.await_weights();
    if (rows_.has_rows()) weights.follow(o, [&](int i) { return passed_[scores_.row_of(i)]; });
    F::begin_values(o, stream, block, rows_.first_column());
    ahead.ask();
  }

  /// The block's scores become weights, which are left to the other warpgroup, too. O += P V.
  template <class Ahead, class Out>
  __device__ __forceinline__ void multiply(const Tile<kConfig>& tile, int kv_first, typename F::Stream& stream,
                                           Ahead& ahead, Weights& weights,
                                           typename F::Scores (&s)[1][Scores::kKeyFragments], Out& o) const {
    typename F::Weights p = {};
    if (rows_.has_rows()) {
      scores_.attend(tile, true, kv_first, weights, s, o);
      F::pack(p, s[0]);
      F::leave_weights(p, stream, scores_.row_wave() * kConfig.wave_rows());
#pragma unroll
      for (int i = 0; i < Scores::kOwnRows; ++i) {
        if (F::first_of_row()) passed_[scores_.row_of(i)] = weights.m[i];
      }
    }
    stream.pass_weights();
    F::begin_values(o, p, stream, rows_.first_column());
    ahead.ask();
    F::await_values(o);
    copy(stream);
  }

  /// The warpgroup's part of the block that was asked for is copied, where all of its waves have read another one.
  __device__ __forceinline__ static void copy(typename F::Stream& stream) {
    stream.block_is_read();
    stream.copy_panels();
    stream.end_of_ask();
  }

  WideRows<kConfig, F, Scores> rows_;
  float* passed_;
  Scores& scores_;
};

}  // namespace heddle::portable
