// Blocks of keys of which a mask leaves a tile no pair: they are neither read nor multiplied. The mask is asked about a
// block before the block is asked for, for 32 units at a time, one a lane, so that what it reads by key (documents by
// their ids) comes for all of them at once. It may be anything at any run; nothing is kept from one run to the next.
#pragma once

#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/line.cuh"
#include "portable/decode_mma/own_span.cuh"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

/// All blocks are left. `Mods`: of the generated text (TileScores).
template <auto kConfig, class F, class Mods, bool kTests = (kConfig.tested_heads > 0)>
class BlocksLeft {
 public:
  __device__ __forceinline__ void find(const shared::DecodeMmaParams&, const Tile<kConfig>&, const LinePlace<kConfig>&,
                                       int) {}
  __device__ __forceinline__ bool has(int) const { return true; }
  __device__ __forceinline__ void keep(bool) {}
  __device__ __forceinline__ bool has_oldest() const { return true; }
};

template <auto kConfig, class F, class Mods>
class BlocksLeft<kConfig, F, Mods, true> {
 public:
  /// Asks the mask about the units from the one at `place` on, unless that has been done. By all threads of the wave,
  /// before has(). `own_keys`: where the wave's block of a unit begins.
  __device__ __forceinline__ void find(const shared::DecodeMmaParams& params, const Tile<kConfig>& tile,
                                       const LinePlace<kConfig>& place, int own_keys) {
    if (place.unit != 0 && place.unit - first_ < kUnits) return;
    first_ = place.unit;
    if constexpr (kConfig.device_lengths) {
      // The mask reads the sequence's numbers where those of the tile that is walked stand.
      shared::SequenceSpan& own = own_span<kConfig>();
      const shared::SequenceSpan walked = own;
      F::wave_barrier();
      own = place.span;
      F::wave_barrier();
      is_left_ = leaves_some(params.mod, tile, place, first_ + F::lane(), own_keys);
      F::wave_barrier();
      own = walked;
      F::wave_barrier();
    } else {
      is_left_ = leaves_some(params.mod, tile, place, first_ + F::lane(), own_keys);
    }
  }

  /// The mask leaves some pair of the wave's block of a unit.
  __device__ __forceinline__ bool has(int unit) const { return F::from_lane(is_left_ ? 1 : 0, unit - first_) != 0; }

  /// The block that is asked for, or in whose place none is.
  __device__ __forceinline__ void keep(bool asked) { asked_ = asked_ << 1 | (asked ? 1U : 0U); }
  /// The oldest block of the ring was asked for.
  __device__ __forceinline__ bool has_oldest() const { return (asked_ >> (kConfig.stages - 1) & 1U) != 0; }

 private:
  static constexpr int kUnits = kConfig.shape().wave;

  __device__ __forceinline__ static bool leaves_some(const shared::ModValues& mod, const Tile<kConfig>& tile,
                                                     const LinePlace<kConfig>& place, int unit, int own_keys) {
    if (unit >= place.units) return false;
    const int first = place.keys.begin(unit) + own_keys;
    const shared::KeyRun run = place.keys.run(unit, tile.kv_len);
    const int end = run.end < first + kConfig.block_keys() ? run.end : first + kConfig.block_keys();
    if (first >= end) return false;
    const int heads = tile.heads < kConfig.tested_heads ? tile.heads : kConfig.tested_heads;
    const int left = tile.q_len - tile.q_first, queries = left < kQueries ? left : kQueries;
#pragma unroll 1
    for (int i = 0; i < heads * queries; ++i) {
      if (row_leaves_some(mod, tile.batch, tile.head + i % heads, tile.q_start + tile.q_first + i / heads, first,
                          end)) {
        return true;
      }
    }
    return false;
  }

  /// The mask leaves a row one key at least of [begin, end). What eight keys read is asked for together.
  __device__ __forceinline__ static bool row_leaves_some(const shared::ModValues& mod, int b, int h, int q_idx,
                                                         int begin, int end) {
    using Mod = typename Mods::Mask::Mod;
    constexpr int kAtOnce = 8;
    const typename Mod::Uniform uniform = Mod::uniform(mod, b, h);
    const typename Mod::Row row = Mod::row(mod, uniform, b, h, q_idx);
    int found = 0;
#pragma unroll 1
    for (int first = begin; first < end && found == 0; first += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int key = first + i < end ? first + i : end - 1;
        const typename Mod::Column column = Mod::column(mod, uniform, b, h, key);
        found |= Mods::Mask::element(mod, uniform, row, column, b, h, q_idx, key) ? 1 : 0;
      }
    }
    return found != 0;
  }

  static constexpr int kQueries = kConfig.live_rows / kConfig.packed_heads;  // of a tile
  int first_ = -kUnits;                                                      // the unit that lane 0 knows
  bool is_left_ = false;
  unsigned asked_ = 0;  // the last blocks, a bit each, the newest one lowest
};

}  // namespace heddle::portable
