// The steps of a tile of which each warpgroup has keys and values of its own (kConfig.by_warpgroups(), not wide()). It
// waits for no other one: while one computes weights, products of the other are computed. Where a block's rows are is
// asked for before the products of the block before it, so that entries of a page table come meanwhile.
#pragma once

#include "portable/decode_mma/warpgroup_steps.cuh"

namespace heddle::portable {

template <auto kConfig, class F, class Scores>
class WarpgroupSteps<kConfig, F, Scores, false> {
 public:
  /// `has_rows`: the wave may have rows of the tile. It takes part in products without such, too.
  __device__ __forceinline__ WarpgroupSteps(char*, Scores& scores, bool has_rows)
      : scores_(scores),
        wave_key_(scores.key_wave() * kConfig.wave_keys()),
        has_rows_(has_rows && scores.row_wave() * kConfig.wave_rows() < kConfig.live_rows) {}

  /// `count` units from `place` on. ahead.ask() asks for the next block that is not asked for yet, once for each unit;
  /// ahead.is_left(): before that, whether the mask leaves something of the next one that is read.
  template <class Place, class Ahead, int kOutFragments>
  __device__ __forceinline__ void walk(const Tile<kConfig>& tile, const Place& place, int count,
                                       typename F::Stream& stream, Ahead& ahead, RowWeights<kConfig, F>& weights,
                                       typename F::Out (&o)[1][kOutFragments]) const {
#pragma unroll 1
    for (int unit = place.unit; unit < place.unit + count; ++unit) {
      const int kv_first = place.keys.begin(unit);
      // For all of the warpgroup.
      const bool any = kv_first + wave_key_ < place.keys.run(unit, tile.kv_len).end && ahead.is_left();
      ahead.ask();
      stream.arrives();
      if (any) {
        typename F::Scores s[1][Scores::kKeyFragments];
        F::begin_scores(s, stream);
        F::await_scores(s);
        typename F::Weights p = {};
        if (has_rows_) {
          scores_.attend(tile, true, kv_first, weights, s, o);
          F::pack(p, s[0]);
        }
        F::begin_values(o, p, stream, 0);
        F::await_values(o);
      }
      stream.block_is_read();
      stream.copy_panels();
      stream.end_of_ask();
    }
  }

 private:
  Scores& scores_;
  int wave_key_;
  bool has_rows_;
};

}  // namespace heddle::portable
