// The portable forward: one tile of queries against the key blocks of its runs. Written against fragments that speak of
// attention's roles (fragments/README.md), so that one text serves every architecture, with matrix instructions or
// without, and the host.
//
// A step: the keys have arrived, ask for the values; S = Q K^T; the values have arrived, ask for the next keys; mods
// and masks; softmax with the running maximum; O += P V. A step has two barriers. After each, the arrived block is
// there for all waves, and all waves have read the other buffer.
//
// With few queries memory decides: blocks of keys and values come in a ring of kConfig.stages buffers (rings()), so
// that stages - 1 blocks are always under way. A step then has one barrier.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "portable/forward_mma/fills.cuh"
#include "portable/forward_mma/merge.cuh"
#include "portable/forward_mma/walk.cuh"
#include "portable/rows/descales.cuh"
#include "portable/rows/tile_scores.cuh"

namespace heddle::portable {

/// `F`: the architecture's fragments. `Mods`: of the generated text (TileScores).
template <auto kConfig, class F, class Mods>
class Forward {
 public:
  using Real = typename F::Real;

  __device__ __forceinline__ Forward(const ForwardMmaParams& params, char* memory)
      : params_(params), memory_(memory), scores_(params, params.mod) {}

  /// CTA number `cta` of the launch, of `ctas`.
  __device__ __forceinline__ void run(int cta, int ctas) {
    const int items = kConfig.device_lengths ? *params_.listed.item_count : params_.tiles.item_count;
    const int item = cta / kConfig.splits;
    if (item < items) compute(item, cta % kConfig.splits);
    store_fills<kConfig, F>(params_, cta, ctas);
  }

 private:
  using Scores = TileScores<kConfig, F, Mods, ForwardMmaParams>;
  static constexpr int kFragments = Scores::kFragments, kOwnRows = Scores::kOwnRows;
  static constexpr int kKeyFragments = Scores::kKeyFragments, kOutFragments = kConfig.v_columns() / F::kOuts;
  static_assert(kConfig.v_columns() % F::kOuts == 0);

  __device__ __forceinline__ void compute(int number, int split) {
    RowWeights<kConfig, F> weights = scores_.no_weights();
    typename F::Out o[kFragments][kOutFragments];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int d = 0; d < kOutFragments; ++d) F::clear(o[f][d]);
    }
    walk(number, split, weights, o);
    weights.join();
    bool holds = true;  // this wave has what the CTA found of its rows
    if constexpr (kConfig.key_waves > 1) {
      holds = merge_waves<kConfig, F>(memory_, scores_.row_wave(), scores_.key_wave(), weights, o);
    }
    if constexpr (kConfig.splits_keys()) {
      finish_split(number, split, weights, o, holds);
    } else {
      if (holds) store_tile(number, weights, o);
    }
  }

  /// All steps of the tile, or of this CTA's part of them.
  __device__ __forceinline__ void walk(int number, int split, RowWeights<kConfig, F>& weights,
                                       typename F::Out (&o)[kFragments][kOutFragments]) {
    const shared::WorkItem& item = params_.tiles.items[number];
    const Tile<kConfig> tile = tile_of<kConfig>(params_, item);
    // 64-bit products: a tile may have 2^20 steps.
    const int steps = item.steps, first = static_cast<int>(static_cast<long long>(steps) * split / kConfig.splits);
    const int end = static_cast<int>(static_cast<long long>(steps) * (split + 1) / kConfig.splits);
    Walk walk(params_.tiles.runs, item, first, end - first);
    if (!walk.any()) return;
    if constexpr (kConfig.rings()) {
      walk_ring(walk, tile, weights, o);
    } else {
      walk_steps(walk, tile, weights, o);
    }
  }

  __device__ __forceinline__ void walk_steps(Walk walk, const Tile<kConfig>& tile, RowWeights<kConfig, F>& weights,
                                             typename F::Out (&o)[kFragments][kOutFragments]) {
    scores_.begin(tile);
    const KeysOf<kConfig> keys(params_, tile);
    const KeySource<kConfig> values(params_.v, params_.table, tile);
    typename F::Stream stream(memory_);
    stream.ask_keys(keys, walk.block() * kConfig.kv_block, tile.kv_len);
    typename F::Queries q[kFragments];
    load_queries(stream, q, tile);
    typename F::Scores s[kFragments][kKeyFragments];
    for (bool more = true; more;) {
      const int flags = walk.flags() >> unit(), kv_first = walk.block() * kConfig.kv_block;
      const bool attends = (flags & shared::kStepAttends) != 0;
      stream.keys_arrive();
      stream.ask_values(values, kv_first, tile.kv_len);
      if (attends) F::multiply_keys(s, q, stream, scores_.key_wave() * kConfig.wave_keys());
      walk.next();
      more = walk.any();
      stream.values_arrive();
      if (more) stream.ask_keys(keys, walk.block() * kConfig.kv_block, tile.kv_len);
      if (!attends) continue;
      scores_.attend(tile, (flags & shared::kStepPartial) != 0, kv_first, weights, s, o);
      F::add_values(o, s, stream, scores_.key_wave() * kConfig.wave_keys());
    }
    stream.end();
  }

  /// Likewise, with the blocks of later steps under way.
  __device__ __forceinline__ void walk_ring(Walk walk, const Tile<kConfig>& tile, RowWeights<kConfig, F>& weights,
                                            typename F::Out (&o)[kFragments][kOutFragments]) {
    const KeysOf<kConfig> keys(params_, tile);
    const KeySource<kConfig> values(params_.v, params_.table, tile);
    typename F::Stream stream(memory_);
    typename F::Queries q[kFragments];
    load_queries(stream, q, tile);
    struct Step {
      int block, flags;
    };
    constexpr int kUnderWay = kConfig.stages - 1;
    Step asked[kUnderWay] = {};  // the oldest first
    const auto ask = [&] {
#pragma unroll
      for (int i = 1; i < kUnderWay; ++i) asked[i - 1] = asked[i];
      if (walk.any()) {
        asked[kUnderWay - 1] = {walk.block(), walk.flags()};
        stream.ask_block(keys, values, walk.block() * kConfig.kv_block, tile.kv_len);
        walk.next();
      }
      stream.end_of_block();
    };
    int left = walk.left();
#pragma unroll 1
    for (int i = 0; i < kUnderWay; ++i) ask();
    scores_.begin(tile);
    typename F::Scores s[kFragments][kKeyFragments];
    for (; left > 0; --left) {
      const int flags = asked[0].flags >> unit(), kv_first = asked[0].block * kConfig.kv_block;
      stream.block_arrives();
      ask();
      if ((flags & shared::kStepAttends) == 0) continue;
      F::multiply_keys(s, q, stream, scores_.key_wave() * kConfig.wave_keys());
      scores_.attend(tile, (flags & shared::kStepPartial) != 0, kv_first, weights, s, o);
      F::add_values(o, s, stream, scores_.key_wave() * kConfig.wave_keys());
    }
    stream.end();
  }

  __device__ __forceinline__ void load_queries(typename F::Stream& stream, typename F::Queries (&q)[kFragments],
                                               const Tile<kConfig>& tile) const {
    stream.load_queries(q, [&](int i) { return tile.query_row(params_, scores_.row_of(i)); });
    apply_descales<kConfig, F>(q, params_, tile, scores_, tile.kv_head);
  }
  /// The factor of a tile's finished rows.
  __device__ __forceinline__ Real factor_of_values(const Tile<kConfig>& tile) const {
    if constexpr (kConfig.converts()) return descale_of(params_.descales.v, tile.batch, tile.kv_head);
    return 1;
  }

  /// The wave's place among the list's units of 64 rows.
  __device__ __forceinline__ int unit() const {
    return scores_.row_wave() * kConfig.wave_rows() / shared::kWarpgroupRows;
  }

  __device__ __forceinline__ void store_tile(int number, RowWeights<kConfig, F>& weights,
                                             typename F::Out (&o)[kFragments][kOutFragments]) const {
    // Read once more, so that it takes no registers before.
    const Tile<kConfig> tile = tile_of<kConfig>(params_, params_.tiles.items[number]);
    const Real of_values = factor_of_values(tile);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = scores_.row_of(i), head = scores_.head_of(tile, i);
      RowEnd<Real> end = weights.close(i, params_.sinks, head);
      if constexpr (kConfig.converts()) end.factor *= of_values;
      if (!tile.has(row)) continue;
      const int at = tile.q_begin + tile.query_of(row);
      store_row<kConfig, F>(params_.outputs, tile.batch, head, at, end.factor, o[i / F::kOwnRows], i % F::kOwnRows);
      if (F::first_of_row()) store_row_numbers<kConfig, Real>(params_, tile.batch, head, at, end);
    }
  }

  /// This CTA's part of the tile's keys is done. `holds`: this wave has what the CTA found of its rows.
  __device__ __forceinline__ void finish_split(int number, int split, const RowWeights<kConfig, F>& weights,
                                               const typename F::Out (&o)[kFragments][kOutFragments],
                                               bool holds) const {
    using Parts = SplitParts<kConfig, F>;
    const Parts parts(params_, number);
    const Tile<kConfig> tile = tile_of<kConfig>(params_, params_.tiles.items[number]);
    const Real of_values = factor_of_values(tile);
    const auto has = [&](int row) { return tile.has(row); };
    if (holds)
      parts.leave(
          split, [&](int i) { return scores_.row_of(i); }, has, weights, o);
    if (!parts.is_last(memory_)) return;
    parts.merge(weights, has, [&](int row, int column, const auto& sums, const auto& merged) {
      const int head = tile.head_of(row), at = tile.q_begin + tile.query_of(row);
      RowEnd<Real> end = merged.close(0, params_.sinks, head);
      if constexpr (kConfig.converts()) end.factor *= of_values;
      store_run<kConfig, F>(params_, tile.batch, head, at, column, end.factor, sums);
      if (column == 0) store_row_numbers<kConfig, Real>(params_, tile.batch, head, at, end);
    });
  }

  const ForwardMmaParams& params_;
  char* memory_;
  Scores scores_;
};

}  // namespace heddle::portable
