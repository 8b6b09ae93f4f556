// The scores of a wave's rows, from products to what the values are multiplied by: score mods, masks, the running
// softmax, weight mods. Common to the kernels whose waves walk key blocks.
#pragma once

#include "portable/rows/placed_rows.cuh"
#include "portable/rows/row_mods.cuh"
#include "portable/rows/row_weights.cuh"
#include "portable/rows/tile.cuh"

namespace heddle::portable {

/// `Mods`: the generated text's Mask, Score, Offset, Weight, Queryplace and Keyplace, each with `using Mod` and
/// element(). `Params`: a family's, for F::scale().
template <auto kConfig, class F, class Mods, class Params>
class TileScores : RowShift<kConfig.placed_queries> {
 public:
  using Real = typename F::Real;
  static constexpr int kFragments = kConfig.row_fragments, kOwnRows = kFragments * F::kOwnRows;
  static constexpr int kKeyFragments = kConfig.wave_keys() / F::kKeys;
  static constexpr bool kPacked = kConfig.packs();
  static constexpr bool kApart = kPacked || kConfig.prefixed();  // rows are of several heads, or sequences
  static constexpr bool kMapped = kConfig.scores != shared::ScoreForm::plain;
  static_assert(kConfig.wave_keys() % F::kKeys == 0);
  // A wave's rows lie in one granule, and the planner sees to it that a step's keys do.
  static_assert(!kConfig.placed_queries || (!kConfig.prefixed() && shared::kWarpgroupRows % kConfig.wave_rows() == 0));

  __device__ __forceinline__ TileScores(const Params& params, const shared::ModValues& mod)
      : params_(params),
        mod_(mod),
        row_wave_(F::wave() % kConfig.row_waves),
        key_wave_(F::wave() / kConfig.row_waves) {}

  /// Which of the waves that share a tile's rows, and of those that share the keys of a step.
  __device__ __forceinline__ int row_wave() const { return row_wave_; }
  __device__ __forceinline__ int key_wave() const { return key_wave_; }
  /// The row of the tile that is this thread's row i.
  __device__ __forceinline__ int row_of(int i) const {
    return row_wave_ * kConfig.wave_rows() + i / F::kOwnRows * kConfig.shape().rows + F::own_row(i % F::kOwnRows);
  }
  /// The first key of the wave's part of a step that this thread's key c of fragment n is after.
  __device__ __forceinline__ int key_of(int n, int c) const {
    return kConfig.first_key_of(key_wave_) + n * F::kKeys + F::own_key(c);
  }

  /// The query head of the thread's row i.
  __device__ __forceinline__ int head_of(const Tile<kConfig>& tile, int i) const {
    return kPacked ? tile.head_of(row_of(i)) : tile.head;
  }
  /// Weights of scores as attend() leaves them, before the first key.
  __device__ __forceinline__ RowWeights<kConfig, F> no_weights() const {
    return RowWeights<kConfig, F>(kMapped ? Real(1) : F::scale(params_));
  }

  /// Once a tile: what the mods have of each row.
  __device__ __forceinline__ void begin(const Tile<kConfig>& tile) {
    const auto batch = [&](int i) { return tile.batch_of(row_of(i)); };
    const auto head = [&](int i) { return tile.head_of(row_of(i)); };
    if constexpr (kConfig.placed_queries) {
      const int first = tile.query_of(row_wave_ * kConfig.wave_rows());
      this->shift = shift_of_query<typename Mods::Queryplace>(mod_, tile.batch, tile.head, first);
    }
    const auto q_idx = [&](int i) { return this->of_index(tile.q_idx_of(row_of(i))); };
    if constexpr (kConfig.prefixed()) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) indices_[i] = {batch(i), q_idx(i)};
    }
    if constexpr (kConfig.masked) mask_.begin(mod_, batch, head, q_idx);
    if constexpr (kConfig.scores == shared::ScoreForm::added) offset_.begin(mod_, batch, head, q_idx);
    if constexpr (kConfig.scores == shared::ScoreForm::mapped) score_.begin(mod_, batch, head, q_idx);
    if constexpr (kConfig.weighted) weight_.begin(mod_, batch, head, q_idx);
  }

  /// S becomes P; O and the sums of the rows are brought to their new maxima.
  /// `partial`: the mask decides of some of them. `share`: RowWeights::step()'s.
  template <int kOutFragments, class Share = NothingShared>
  __device__ __forceinline__ void attend(const Tile<kConfig>& tile, bool partial, int kv_first,
                                         RowWeights<kConfig, F>& weights,
                                         typename F::Scores (&s)[kFragments][kKeyFragments],
                                         typename F::Out (&o)[kFragments][kOutFragments], const Share& share = {}) {
    const bool ragged = kv_first + kConfig.kv_block > tile.kv_len;
    int key_first = kv_first;  // as mods count keys
    if constexpr (kConfig.placed_keys) {
      key_first += shift_of_key<typename Mods::Keyplace>(mod_, tile.batch, tile.head, kv_first);
    }
    const Real scale = F::scale(params_);
    if constexpr (kConfig.scores == shared::ScoreForm::added) {
      for_elements(tile, key_first, offset_, s, [&](Real& x, const auto&... at) {
        x = F::fused(x, scale, static_cast<Real>(Mods::Offset::element(mod_, at...)));
      });
    }
    if constexpr (kConfig.scores == shared::ScoreForm::mapped) {
      for_elements(tile, key_first, score_, s,
                   [&](Real& x, const auto& u, const auto& r, const auto& c, const auto&... at) {
                     x = Mods::Score::element(mod_, u, r, c, x * scale, at...);
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
        for_elements(tile, key_first, mask_, s, [&](Real& x, const auto&... at) {
          if (!Mods::Mask::element(mod_, at...)) x = -F::infinity();
        });
      }
    }
    weights.step(s, o, share);
    if constexpr (kConfig.weighted) {
      // In a step some of whose elements do not attend a weight that is 0 stays 0, whatever the weight_mod says.
      const bool cut = ragged || (kConfig.masked && partial);
      for_elements(tile, key_first, weight_, s, [&](Real& x, const auto&... at) {
        const Real weight = static_cast<Real>(Mods::Weight::element(mod_, at...));
        if (!cut || x != 0) x *= weight;
      });
    }
  }

 private:
  struct Indices {
    int batch, q_idx;
  };
  template <class M>
  using RowsOf = RowsOfMod<typename M::Mod, kOwnRows, kApart>;

  __device__ __forceinline__ int batch_of(const Tile<kConfig>& tile, int i) const {
    if constexpr (kConfig.prefixed()) return indices_[i].batch;
    return tile.batch;
  }
  __device__ __forceinline__ int q_idx_of(const Tile<kConfig>& tile, int i) const {
    if constexpr (kConfig.prefixed()) return indices_[i].q_idx;
    return this->of_index(tile.q_idx_of(row_of(i)));
  }

  /// Calls visit(x, uniform, row, column, b, h, q_idx, kv_idx) for each of the thread's scores.
  template <class Rows, class Visit>
  __device__ __forceinline__ void for_elements(const Tile<kConfig>& tile, int key_first, const Rows& rows,
                                               typename F::Scores (&s)[kFragments][kKeyFragments],
                                               Visit&& visit) const {
    using Mod = typename Rows::ModType;
#pragma unroll
    for (int n = 0; n < kKeyFragments; ++n) {
#pragma unroll
      for (int c = 0; c < F::kOwnKeys; ++c) {
        const int kv_idx = key_first + key_of(n, c);
        typename Mod::Column column = Mod::column(mod_, rows.uniform(0), batch_of(tile, 0), head_of(tile, 0), kv_idx);
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
          const int batch = batch_of(tile, i), head = head_of(tile, i);
          if (kApart && i > 0) column = Mod::column(mod_, rows.uniform(i), batch, head, kv_idx);
          visit(s[i / F::kOwnRows][n].x[i % F::kOwnRows][c], rows.uniform(i), rows.row(i), column, batch, head,
                q_idx_of(tile, i), kv_idx);
        }
      }
    }
  }

  const Params& params_;
  const shared::ModValues& mod_;
  int row_wave_, key_wave_;
  Indices indices_[kConfig.prefixed() ? kOwnRows : 1];  // prefixed: of the thread's rows
  RowsOf<typename Mods::Mask> mask_;
  RowsOf<typename Mods::Offset> offset_;
  RowsOf<typename Mods::Score> score_;
  RowsOf<typename Mods::Weight> weight_;
};

}  // namespace heddle::portable
