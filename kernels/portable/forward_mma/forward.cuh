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

#include "portable/forward_mma/merge.cuh"
#include "portable/forward_mma/mods.cuh"
#include "portable/forward_mma/output.cuh"
#include "portable/forward_mma/tile.cuh"
#include "portable/forward_mma/weights.cuh"
#include "backend/portable/shared/forward_mma_memory.h"

namespace heddle::portable {

/// `F`: the architecture's fragments. `Mods`: the generated text's Mask, Score, Offset and Weight, each with
/// `using Mod` and element().
template <auto kConfig, class F, class Mods>
class Forward {
 public:
  using Real = typename F::Real;

  __device__ __forceinline__ Forward(const ForwardMmaParams& params, char* memory) : params_(params), memory_(memory) {}

  /// CTA number `cta` of the launch, of `ctas`.
  __device__ __forceinline__ void run(int cta, int ctas) {
    const int items = kConfig.device_lengths ? *params_.listed.item_count : params_.tiles.item_count;
    const int item = cta / kConfig.splits;
    if (item < items) compute(item, cta % kConfig.splits);
    store_fills<kConfig, F>(params_, cta, ctas);
  }

 private:
  static constexpr int kFragments = kConfig.row_fragments, kOwnRows = kFragments * F::kOwnRows;
  static constexpr int kKeyFragments = kConfig.wave_keys() / F::kKeys, kOutFragments = kConfig.v_columns() / F::kOuts;
  static constexpr bool kPacked = kConfig.packs();
  static constexpr bool kMapped = kConfig.scores != shared::ScoreForm::plain;
  static constexpr int kWaveRows = kConfig.wave_rows();
  static_assert(kConfig.wave_keys() % F::kKeys == 0 && kConfig.v_columns() % F::kOuts == 0);

  template <class M>
  using RowsOf = RowsOfMod<typename M::Mod, kOwnRows, kPacked>;

  /// The row of the tile that is this thread's row i.
  __device__ __forceinline__ int row_of(int i) const {
    return row_wave_ * kWaveRows + i / F::kOwnRows * kConfig.shape().rows + F::own_row(i % F::kOwnRows);
  }
  /// The first key of the wave's part of a step that this thread's key c of fragment n is after.
  __device__ __forceinline__ int key_of(int n, int c) const {
    return key_wave_ * kConfig.wave_keys() + n * F::kKeys + F::own_key(c);
  }

  __device__ __forceinline__ void compute(int number, int split) {
    row_wave_ = F::wave() % kConfig.row_waves;
    key_wave_ = F::wave() / kConfig.row_waves;
    RowWeights<kConfig, F> weights(kMapped ? Real(1) : F::scale(params_));
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
      holds = merge_waves<kConfig, F>(memory_, row_wave_, key_wave_, weights, o);
    }
    if constexpr (kConfig.splits_keys()) {
      finish_split(number, split, weights, o, holds);
    } else {
      if (holds) store_tile(number, weights, o);
    }
  }

  __device__ __forceinline__ void begin_mods(const Tile<kConfig>& tile) {
    const auto head = [&](int i) { return tile.head_of(row_of(i)); };
    const auto q_idx = [&](int i) { return tile.q_idx_of(row_of(i)); };
    if constexpr (kConfig.masked) mask_.begin(params_.mod, tile.batch, head, q_idx);
    if constexpr (kConfig.scores == shared::ScoreForm::added) offset_.begin(params_.mod, tile.batch, head, q_idx);
    if constexpr (kConfig.scores == shared::ScoreForm::mapped) score_.begin(params_.mod, tile.batch, head, q_idx);
    if constexpr (kConfig.weighted) weight_.begin(params_.mod, tile.batch, head, q_idx);
  }

  /// All steps of the tile, or of this CTA's part of them.
  __device__ __forceinline__ void walk(int number, int split, RowWeights<kConfig, F>& weights,
                                       typename F::Out (&o)[kFragments][kOutFragments]) {
    const shared::WorkItem& item = params_.tiles.items[number];
    const Tile<kConfig> tile(params_, item);
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
    begin_mods(tile);
    const KeySource<kConfig> keys(params_.k, params_.table, tile), values(params_.v, params_.table, tile);
    typename F::Stream stream(memory_);
    stream.ask_keys(keys, walk.block() * kConfig.kv_block, tile.kv_len);
    typename F::Queries q[kFragments];
    stream.load_queries(q, [&](int i) { return query_row(tile, row_of(i)); });
    typename F::Scores s[kFragments][kKeyFragments];
    for (bool more = true; more;) {
      const int flags = walk.flags() >> unit(), kv_first = walk.block() * kConfig.kv_block;
      const bool attends = (flags & shared::kStepAttends) != 0;
      stream.keys_arrive();
      stream.ask_values(values, kv_first, tile.kv_len);
      if (attends) F::multiply_keys(s, q, stream, key_wave_ * kConfig.wave_keys());
      walk.next();
      more = walk.any();
      stream.values_arrive();
      if (more) stream.ask_keys(keys, walk.block() * kConfig.kv_block, tile.kv_len);
      if (!attends) continue;
      attend(tile, flags, kv_first, weights, s, o);
      F::add_values(o, s, stream, key_wave_ * kConfig.wave_keys());
    }
    stream.end();
  }

  /// Likewise, with the blocks of later steps under way.
  __device__ __forceinline__ void walk_ring(Walk walk, const Tile<kConfig>& tile, RowWeights<kConfig, F>& weights,
                                            typename F::Out (&o)[kFragments][kOutFragments]) {
    const KeySource<kConfig> keys(params_.k, params_.table, tile), values(params_.v, params_.table, tile);
    typename F::Stream stream(memory_);
    typename F::Queries q[kFragments];
    stream.load_queries(q, [&](int i) { return query_row(tile, row_of(i)); });
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
    begin_mods(tile);
    typename F::Scores s[kFragments][kKeyFragments];
    for (; left > 0; --left) {
      const int flags = asked[0].flags >> unit(), kv_first = asked[0].block * kConfig.kv_block;
      stream.block_arrives();
      ask();
      if ((flags & shared::kStepAttends) == 0) continue;
      F::multiply_keys(s, q, stream, key_wave_ * kConfig.wave_keys());
      attend(tile, flags, kv_first, weights, s, o);
      F::add_values(o, s, stream, key_wave_ * kConfig.wave_keys());
    }
    stream.end();
  }

  /// The wave's place among the list's units of 64 rows.
  __device__ __forceinline__ int unit() const { return row_wave_ * kWaveRows / shared::kWarpgroupRows; }

  /// Where a row's query is; null: there is none.
  __device__ __forceinline__ const char* query_row(const Tile<kConfig>& tile, int row) const {
    if (!tile.has(row)) return nullptr;
    const shared::RowsOfTensor& q = params_.q;
    const long long at = tile.batch * q.stride[0] + tile.head_of(row) * q.stride[1] +
                         (tile.q_begin + tile.query_of(row)) * q.stride[2];
    return static_cast<const char*>(q.data) + at * kConfig.element_bytes();
  }

  /// S becomes P; O and the sums of the rows are brought to their new maxima.
  __device__ __forceinline__ void attend(const Tile<kConfig>& tile, int flags, int kv_first,
                                         RowWeights<kConfig, F>& weights,
                                         typename F::Scores (&s)[kFragments][kKeyFragments],
                                         typename F::Out (&o)[kFragments][kOutFragments]) {
    const bool ragged = kv_first + kConfig.kv_block > tile.kv_len;
    const bool partial = kConfig.masked && (flags & shared::kStepPartial) != 0;
    const Real scale = F::scale(params_);
    if constexpr (kConfig.scores == shared::ScoreForm::added) {
      for_elements(tile, kv_first, offset_, s, [&](Real& x, const auto&... at) {
        x = F::fused(x, scale, static_cast<Real>(Mods::Offset::element(params_.mod, at...)));
      });
    }
    if constexpr (kConfig.scores == shared::ScoreForm::mapped) {
      for_elements(tile, kv_first, score_, s,
                   [&](Real& x, const auto& u, const auto& r, const auto& c, const auto&... at) {
                     x = Mods::Score::element(params_.mod, u, r, c, x * scale, at...);
                   });
    }
    if (ragged) {
      F::fork();
#pragma unroll
      for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
        for (int c = 0; c < F::kOwnKeys; ++c) {
          if (kv_first + key_of(n, c) < tile.kv_len) continue;
#pragma unroll
          for (int i = 0; i < kOwnRows; ++i) s[i / F::kOwnRows][n].x[i % F::kOwnRows][c] = -F::infinity();
        }
      }
    }
    if constexpr (kConfig.masked) {
      if (partial) {
        F::fork();
        for_elements(tile, kv_first, mask_, s, [&](Real& x, const auto&... at) {
          if (!Mods::Mask::element(params_.mod, at...)) x = -F::infinity();
        });
      }
    }
    weights.step(s, o);
    if constexpr (kConfig.weighted) {
      // In a step some of whose elements do not attend a weight that is 0 stays 0, whatever the weight_mod says.
      const bool cut = ragged || partial;
      for_elements(tile, kv_first, weight_, s, [&](Real& x, const auto&... at) {
        const Real weight = static_cast<Real>(Mods::Weight::element(params_.mod, at...));
        if (!cut || x != 0) x *= weight;
      });
    }
  }

  /// Calls visit(x, uniform, row, column, b, h, q_idx, kv_idx) for each of the thread's scores.
  template <class Rows, class Visit>
  __device__ __forceinline__ void for_elements(const Tile<kConfig>& tile, int kv_first, const Rows& rows,
                                               typename F::Scores (&s)[kFragments][kKeyFragments],
                                               Visit&& visit) const {
    using Mod = typename Rows::ModType;
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int c = 0; c < F::kOwnKeys; ++c) {
        const int kv_idx = kv_first + key_of(n, c);
        typename Mod::Column column = Mod::column(params_.mod, rows.uniform(0), tile.batch, head_of(tile, 0), kv_idx);
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
          const int head = head_of(tile, i);
          if (kPacked && i > 0) column = Mod::column(params_.mod, rows.uniform(i), tile.batch, head, kv_idx);
          visit(s[i / F::kOwnRows][n].x[i % F::kOwnRows][c], rows.uniform(i), rows.row(i), column, tile.batch, head,
                tile.q_idx_of(row_of(i)), kv_idx);
        }
      }
    }
  }
  __device__ __forceinline__ int head_of(const Tile<kConfig>& tile, int i) const {
    return kPacked ? tile.head_of(row_of(i)) : tile.head;
  }

  __device__ __forceinline__ void store_tile(int number, RowWeights<kConfig, F>& weights,
                                             typename F::Out (&o)[kFragments][kOutFragments]) const {
    // Read once more, so that it takes no registers before.
    const Tile<kConfig> tile(params_, params_.tiles.items[number]);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = row_of(i), head = head_of(tile, i);
      const RowEnd<Real> end = weights.close(i, params_.sinks, head);
      if (!tile.has(row)) continue;
      const int at = tile.q_begin + tile.query_of(row);
      store_row<kConfig, F>(params_.outputs, tile.batch, head, at, end.factor, o[i / F::kOwnRows], i % F::kOwnRows);
      if (F::first_of_row()) store_row_numbers(tile.batch, head, at, end);
    }
  }

  /// This CTA's part of the tile's keys is done. `holds`: this wave has what the CTA found of its rows.
  __device__ __forceinline__ void finish_split(int number, int split, const RowWeights<kConfig, F>& weights,
                                               const typename F::Out (&o)[kFragments][kOutFragments],
                                               bool holds) const {
    using Parts = SplitParts<kConfig, F>;
    const Parts parts(params_, number);
    const Tile<kConfig> tile(params_, params_.tiles.items[number]);
    const auto has = [&](int row) { return tile.has(row); };
    if (holds) parts.leave(split, [&](int i) { return row_of(i); }, has, weights, o);
    if (!parts.is_last(memory_)) return;
    parts.merge(weights, has, [&](int row, int column, const Real(&sums)[Parts::kRun], const auto& merged) {
      const int head = tile.head_of(row), at = tile.q_begin + tile.query_of(row);
      const RowEnd<Real> end = merged.close(0, params_.sinks, head);
      store_merged<Parts::kRun>(output_row<kConfig, F>(params_.outputs, tile.batch, head, at), column, end.factor,
                                sums);
      if (column == 0) store_row_numbers(tile.batch, head, at, end);
    });
  }
  template <int kRun, class Bits>
  __device__ __forceinline__ static void store_merged(Bits* to, int column, Real factor, const Real (&sums)[kRun]) {
    constexpr OutputType kType = output_type<kConfig>();
    constexpr int kAtOnce = neighbours_at_once<kType, kConfig.o_bytes, F>(kRun);
#pragma unroll
    for (int e = 0; e < kRun; e += kAtOnce) {
      store_neighbours<kType, kConfig.v_dim, kConfig.o_bytes, F, kAtOnce>(to, column + e, factor, sums + e);
    }
  }
  __device__ __forceinline__ void store_row_numbers(int batch, int head, int at, const RowEnd<Real>& end) const {
    if constexpr (kConfig.lse) store_lse<Real>(params_.outputs, batch, head, at, end.lse);
    if constexpr (kConfig.lse_rest) store_lse_rest<Real>(params_, batch, head, at, end.rest);
  }

  const ForwardMmaParams& params_;
  char* memory_;
  int row_wave_ = 0, key_wave_ = 0;
  RowsOf<typename Mods::Mask> mask_;
  RowsOf<typename Mods::Offset> offset_;
  RowsOf<typename Mods::Score> score_;
  RowsOf<typename Mods::Weight> weight_;
};

}  // namespace heddle::portable
