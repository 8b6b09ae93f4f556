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
  /// some time before block(). `own_keys`: where the wave's block of a unit begins.
  __device__ __forceinline__ void read(const shared::DecodeMmaParams& params, const Tile<kConfig>& tile,
                                       const LinePlace<kConfig>& place, int own_keys) {
    if (place.unit != 0 && place.unit - first_ < kUnits) return;
    first_ = place.unit;
    const int unit = first_ + F::lane();
    if (unit >= place.units) return;
    const int key = place.keys.begin(unit) + own_keys, end = place.keys.run(unit, tile.kv_len).end;
    const KeySource<kConfig> keys(params.k, params.table, tile);
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      if (key + i * kConfig.page_rows < end) pages_[i] = keys.page_of(key + i * kConfig.page_rows);
    }
  }

  /// Where the wave's block of a unit, which begins with `key`, is among the keys or values of `source`.
  template <class Source>
  __device__ __forceinline__ auto block(const Source& source, int key, int unit) const {
    if constexpr (kPages == 1) {
      return source.in_page(key, page(0, unit));
    } else {
      return source.in_two_pages(key, {page(0, unit), page(1, unit)});
    }
  }

  /// The page of the block of a unit, which has one.
  __device__ __forceinline__ int number(const shared::PageTable& table, int unit) const {
    const int number = page(0, unit);
    return number < 0 ? 0 : number < table.pages ? number : table.pages - 1;
  }

 private:
  static constexpr int kUnits = kConfig.shape().wave;
  static constexpr int kPages = kConfig.blocks_in_two_pages() ? 2 : 1;
  __device__ __forceinline__ int page(int i, int unit) const { return F::from_lane(pages_[i], unit - first_); }

  int first_ = -kUnits;  // the unit whose pages lane 0 has
  int pages_[kPages] = {};
};

}  // namespace heddle::portable
