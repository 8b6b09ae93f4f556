// Pages of the blocks that a wave is to ask for. Their numbers are read for 32 units at a time, one a lane: a wave that
// read each one a unit ahead waited for a line of the table every few units, which took 2.4 % of the time.
#pragma once

#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/line.cuh"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

template <auto kConfig, class F>
class PagesAhead {
 public:
  /// Reads the pages of the units from the one at `place` on, unless they have been read. By all threads of the wave,
  /// some time before page(). `own_keys`: where the wave's block of a unit begins.
  __device__ __forceinline__ void read(const shared::DecodeMmaParams& params, const Tile<kConfig>& tile,
                                       const LinePlace<kConfig>& place, int own_keys) {
    if (place.unit != 0 && place.unit - first_ < kUnits) return;
    first_ = place.unit;
    const int unit = first_ + F::lane();
    if (unit >= place.units) return;
    const int key = place.keys.begin(unit) + own_keys;
    if (key < place.keys.run(unit, tile.kv_len).end) {
      page_ = KeySource<kConfig>(params.k, params.table, tile).page_of(key);
    }
  }

  /// The page of the wave's block of a unit.
  __device__ __forceinline__ int page(int unit) const { return F::from_lane(page_, unit - first_); }

 private:
  static constexpr int kUnits = kConfig.shape().wave;
  int first_ = -kUnits;  // the unit whose page lane 0 has
  int page_ = 0;
};

}  // namespace heddle::portable
