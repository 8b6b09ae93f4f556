// The blocks of keys and values that a wave asks for, units ahead of the one that it computes. Its ring goes on across
// the ends of tiles.
#pragma once

#include "portable/decode_mma/blocks_left.cuh"
#include "portable/decode_mma/line.cuh"
#include "portable/decode_mma/own_tiles.cuh"
#include "portable/decode_mma/pages_ahead.cuh"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

template <auto kConfig, class F, class Mods, class MaskKeys>
class BlocksAhead {
 public:
  using OwnLine = Line<kConfig, F, MaskKeys>;
  using Stream = typename F::Stream;

  /// The CTA walks the units of the line from `unit`, which is at `place`, to `end`. `own_keys`: where the wave's block
  /// of a unit begins.
  __device__ __forceinline__ BlocksAhead(const DecodeMmaParams& params, const OwnTiles<kConfig>& tiles,
                                         const OwnLine& line, Stream& stream, const LinePlace<kConfig>& place, int unit,
                                         int end, int own_keys)
      : params_(params),
        tiles_(tiles),
        line_(line),
        stream_(stream),
        place_(place),
        unit_(unit),
        end_(end),
        own_keys_(own_keys) {
    if constexpr (kConfig.boxes) stream_.set_maps(boxed());
    find_blocks();
  }

  /// Asks for as many blocks as stand in the ring before the first one is read. Warpgroups ask for a block when they
  /// have read the one before; others before they read the next one.
  __device__ __forceinline__ void fill_ring() {
#pragma unroll 1
    for (int i = kConfig.by_warpgroups() ? 0 : 1; i < kConfig.stages; ++i) {
      if constexpr (kConfig.early) {
        if (unit_ < end_ && !is_old()) F::wait_for_previous();
      }
      ask();
      if constexpr (kConfig.by_warpgroups()) stream_.copy_panels(), stream_.end_of_ask();
    }
  }

  /// Asks for the next block. A unit without keys of the wave, or of which the mask leaves none, and the end of the
  /// CTA's units, count as one.
  __device__ __forceinline__ void ask() {
    if (unit_ >= end_) {
      left_.keep(false);
      return stream_.skip_block();
    }
    const Tile<kConfig> tile = tiles_.at(place_);
    const int key = place_.keys.begin(place_.unit) + own_keys_;
    const shared::KeyRun run = place_.keys.run(place_.unit, tile.kv_len);
    const bool asks = key < run.end && tiles_.has_queries(tile) && left_.has(place_.unit);
    left_.keep(asks);
    if constexpr (kConfig.boxes) {
      asks ? ask_box(tile, key, run.end) : stream_.skip_block();
    } else if (asks) {
      const KeysOf<kConfig> keys(params_, tile);
      const KeySource<kConfig> values(params_.v, params_.table, tile);
      if constexpr (kConfig.blocks_in_pages()) {
        stream_.ask_block(pages_.block(keys, key, place_.unit), pages_.block(values, key, place_.unit), key, run);
      } else {
        stream_.ask_block(keys, values, key, run);
      }
    } else {
      stream_.skip_block();
    }
    ++unit_;
    if (++place_.unit == place_.units) line_.next(place_);
    find_blocks();
  }

  /// The block that is read next was asked for, unless the wave has no keys of it.
  __device__ __forceinline__ bool is_left() const { return left_.has_oldest(); }

 private:
  /// A block of keys whose run ends at `run_end`: what stands behind that arrives as zeros.
  __device__ __forceinline__ void ask_box(const Tile<kConfig>& tile, int key, int run_end) {
    const auto& params = boxed();
    if constexpr (kConfig.page_rows > 0) {
      const int row = key % kConfig.page_rows, left = run_end - (key - row);
      const int end = left < kConfig.page_rows ? left : kConfig.page_rows;
      stream_.ask_box({params.longest - end + row, end, tile.kv_head, pages_.number(params.table, place_.unit)});
    } else {
      stream_.ask_box(
          {params.longest - run_end + key, tile.kv_begin + run_end, tile.kv_head, tile.batch * params.batch_step});
    }
  }
  __device__ __forceinline__ const auto& boxed() const {
    return static_cast<const typename shared::DecodeMmaParamsOf<kConfig.boxes>::Type&>(params_);
  }

  /// Pages of the next blocks, and which of these the mask leaves.
  __device__ __forceinline__ void find_blocks() {
    if constexpr (kConfig.blocks_in_pages()) {
      if (unit_ < end_) pages_.read(params_, tiles_.at(place_), place_, own_keys_);
    }
    if constexpr (kConfig.tested_heads > 0) {
      if (unit_ < end_) left_.find(params_, tiles_.at(place_), place_, own_keys_);
    }
  }

  /// early: the kernel before writes no key or value of the unit, by the caller's promise.
  __device__ __forceinline__ bool is_old() const {
    const int kv_len = tiles_.at(place_).kv_len, begin = place_.keys.begin(place_.unit);
    const int end = place_.keys.run(place_.unit, kv_len).end;
    return (end < begin + kConfig.kv_block ? end : begin + kConfig.kv_block) <= kv_len - params_.fresh_tokens;
  }

  const DecodeMmaParams& params_;
  const OwnTiles<kConfig>& tiles_;
  const OwnLine& line_;
  Stream& stream_;
  LinePlace<kConfig> place_;  // of the unit to ask for
  int unit_, end_, own_keys_;
  PagesAhead<kConfig, F> pages_;
  BlocksLeft<kConfig, F, Mods> left_;
};

}  // namespace heddle::portable
