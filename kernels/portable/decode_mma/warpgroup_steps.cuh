// The steps of a tile whose products two warpgroups compute together (kConfig.by_warpgroups(), wide()). While products
// of the next block's scores are in flight, copies of the block behind it are asked for: asking takes some 900 clocks
// of all waves.
#pragma once

#include "portable/decode_mma/wide_rows.cuh"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

/// `Scores`: TileScores of the CTA. Warpgroups of keys and values apart: own_key_steps.cuh.
template <auto kConfig, class F, class Scores, bool kWide = kConfig.wide()>
class WarpgroupSteps {
 public:
  __device__ __forceinline__ WarpgroupSteps(char* memory, Scores& scores, bool)
      : rows_(memory, scores), scores_(scores), wave_key_(scores.key_wave() * kConfig.wave_keys()) {}

  /// `count` units from `place` on. The first of them may have no key, if the sequence has none; the others have some.
  /// ahead.ask() asks for the next block that is not asked for yet, once for each unit.
  template <class Place, class Ahead, int kOutFragments>
  __device__ __forceinline__ void walk(const Tile<kConfig>& tile, const Place& place, int count,
                                       typename F::Stream& stream, Ahead& ahead, RowWeights<kConfig, F>& weights,
                                       typename F::Out (&o)[1][kOutFragments]) const {
    stream.arrives();
    if (place.keys.begin(place.unit) >= place.keys.run(place.unit, tile.kv_len).end) {
      ahead.ask();
      stream.block_is_read();
      stream.copy_panels();
      stream.end_of_ask();
      return;
    }
    typename F::Scores s[1][Scores::kKeyFragments];
    F::begin_scores(s, stream, wave_key_, false);
#pragma unroll 1
    for (int i = 0;;) {
      F::await_scores(s);
      if (rows_.has_rows()) scores_.attend(tile, true, place.keys.begin(place.unit + i), weights, s, o, rows_);
      rows_.add_values(o, s, stream);
      ahead.ask();
      F::await_values(o);
      stream.block_is_read();
      if (++i == count) break;
      stream.arrives();
      F::begin_scores(s, stream, wave_key_, true);
      stream.end_of_ask();
    }
    stream.copy_panels();
    stream.end_of_ask();
  }

 private:
  WideRows<kConfig, F, Scores> rows_;
  Scores& scores_;
  int wave_key_;
};

}  // namespace heddle::portable
