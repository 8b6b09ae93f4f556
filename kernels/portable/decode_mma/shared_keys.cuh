// Keys that several sequences share, by a kernel of their own (kConfig.shares_alone()); the kernel of the sequences'
// own keys (decode.cuh) is launched behind it. Rows of up to 32 sequences make a tile, of two warpgroups, which
// multiply them by the same keys. Other waves bring the keys. All tiles stand on a line of units, which gangs share as
// in line.cuh. A CTA leaves its rows in the workspace, where the sequences' own tiles find them (prefix_rows.cuh).
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "portable/decode_mma/line.cuh"
#include "portable/decode_mma/own_tiles.cuh"
#include "portable/decode_mma/prefix_rows.cuh"
#include "portable/rows/tile_scores.cuh"

namespace heddle::portable {

/// `F`, `Mods`, `MaskKeys`: as Decode has them.
template <auto kConfig, class F, class Mods, class MaskKeys>
class SharedKeys {
 public:
  __device__ __forceinline__ SharedKeys(const shared::DecodeMmaBoxParams& params, char* memory, int tile)
      : params_(params), memory_(memory), tiles_(params, tile) {}

  /// As one of `gangs` gangs. All waves search for a tile by one piece of code, in the first round for none, which
  /// counts the units.
  __device__ __forceinline__ void run(int gang, int gangs) const {
    Blocks blocks(memory_);
    const OwnLine line(params_);
    const bool brings = F::wave() >= kConfig.waves();
    typename OwnLine::Window window;
    typename OwnLine::Counted counted;
    shared::LineCut cut{};
    int unit = OwnLine::kNone, end = 0;
#pragma unroll 1
    for (;;) {
      const bool counts = unit == OwnLine::kNone;
      if (!brings && !counts) blocks.meet();  // nobody reads what belongs to the tile before
      const Place place = line.shared_at(unit, window, !brings && !counts, counted);
      if (counts) {
        if (counted.units == 0) return;
        cut = shared::line_cut(counted.units, gangs);
        if (gang >= cut.gangs) return;
        unit = cut.begin(gang);
        end = cut.begin(gang + 1);
        window = {};
        continue;
      }
      // The CTA's units of the tile end there.
      const int of_tile = unit - place.unit + place.units, stop = of_tile < end ? of_tile : end;
      if (brings) {
        bring(place, stop - unit, blocks);
      } else {
        attend(place, unit, stop - unit, cut, gang, blocks);
      }
      unit = stop;
      if (unit >= end) return;
    }
  }

 private:
  using Blocks = typename F::SharedBlocks;
  using OwnLine = Line<kConfig, F, MaskKeys>;
  using Place = typename OwnLine::Place;
  using Scores = TileScores<kConfig, F, Mods, shared::DecodeMmaParams>;
  using Weights = RowWeights<kConfig, F>;
  static constexpr int kOutFragments = kConfig.v_columns() / F::kOuts;
  using Out = typename F::Out[1][kOutFragments];
  static constexpr bool kHasMods = kConfig.masked || kConfig.weighted || Scores::kMapped;

  /// Pages of the boxes of a tile's units from key `first` on, of keys before `end`. They are read for some units at a
  /// time, one a lane, and some units before.
  class BoxPages {
   public:
    __device__ __forceinline__ BoxPages(const shared::DecodeMmaParams& params, const Tile<kConfig>& tile, int first,
                                        int end)
        : source_(params.k, params.table, tile), first_(first), end_(end) {
      now_ = read(0);
      later_ = read(kUnits);
    }
    /// The page of the thread's box of unit i. By all threads of the wave, for one unit after the other.
    __device__ __forceinline__ int number(int i) {
      if (i > 0 && i % kUnits == 0) now_ = later_, later_ = read(i + kUnits);
      return F::from_lane(now_, i % kUnits * Blocks::kPieces + Blocks::piece());
    }

   private:
    static constexpr int kUnits = kConfig.shape().wave / Blocks::kPieces;
    __device__ __forceinline__ int read(int unit) const {
      if constexpr (kConfig.page_rows == 0) return 0;
      const int key = first_ + (unit * Blocks::kPieces + F::lane()) * kConfig.box_rows();
      return key < end_ ? source_.page_of(key) : 0;
    }
    KeySource<kConfig> source_;
    int first_, end_, now_, later_;
  };

  /// By the waves behind those: asks for the keys of `count` units from the place on.
  __device__ __forceinline__ void bring(const Place& place, int count, Blocks& blocks) const {
    const Tile<kConfig> tile = tiles_.at(place);
    const int entry_of_keys = params_.k.stride[0] != 0 ? tile.batch : 0,
              entry_of_values = params_.v.stride[0] != 0 ? tile.batch : 0;
    const int first = place.unit * kConfig.kv_block;
    BoxPages pages(params_, tile, first, place.shared_keys);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if constexpr (kConfig.page_rows > 0) {
        const int page = pages.number(i), last = params_.table.pages - 1;
        const int entry = page < 0 ? 0 : page < last ? page : last;
        const int row = (first + i * kConfig.kv_block + Blocks::piece() * kConfig.box_rows()) % kConfig.page_rows;
        blocks.ask(params_, row, kConfig.page_rows, tile.kv_head, entry, entry);
      } else {
        blocks.ask(params_, params_.longest - place.shared_keys + first + i * kConfig.kv_block,
                   tile.kv_begin + place.shared_keys, tile.kv_head, entry_of_keys, entry_of_values);
      }
    }
  }

  /// By the other waves: computes them. `unit`: of the line.
  __device__ __forceinline__ void attend(const Place& place, int unit, int count, const shared::LineCut& cut, int gang,
                                         Blocks& blocks) const {
    Scores scores(params_, params_.mod);
    const Tile<kConfig> tile = tiles_.at(place);
    blocks.ask_queries([&](int i) { return tile.query_row(params_, scores.row_of(i)); });
    if constexpr (kHasMods) scores.begin(tile);
    Weights weights = scores.no_weights();
    Out o;
#pragma unroll
    for (int d = 0; d < kOutFragments; ++d) F::clear(o[0][d]);
    blocks.queries_arrive();
    walk(tile, place.unit, count, blocks, scores, weights, o);
    leave(tile, cut, gang, unit - place.unit, place.units, scores, weights, o);
  }

  /// Where the values of a block are that has been read as keys.
  struct ValuesOf {
    unsigned at;
    __device__ __forceinline__ unsigned values() const { return at; }
  };
  /// Softmax of a block waits for the values of the block before when it has its weights, and no one reads that block
  /// then.
  struct BlockBefore {
    static constexpr bool kShares = false;
    const Blocks& blocks;
    Out& o;
    int block;
    __device__ __forceinline__ void await_rows() const {
      F::await_values(o);
      blocks.is_read(block);
    }
  };

  /// `count` units of the tile, from `unit` on. Scores of a block are asked for before the values of the block before,
  /// so that softmax, which waits for the scores alone, is computed beside these. All waves take part, with rows or
  /// without: branches that differ in which products are in flight would end these.
  __device__ __forceinline__ void walk(const Tile<kConfig>& tile, int unit, int count, Blocks& blocks, Scores& scores,
                                       Weights& weights, Out& o) const {
    typename F::Scores s[1][Scores::kKeyFragments];
    typename F::Weights p;
    blocks.arrives();
    F::begin_scores(s, blocks);
    F::await_scores(s);
    scores.attend(tile, true, unit * kConfig.kv_block, weights, s, o);
    F::pack(p, s[0]);
#pragma unroll 1
    for (int i = 1; i < count; ++i) {
      const ValuesOf before = {blocks.values()};
      const int block = blocks.block();
      blocks.arrives();
      F::begin_scores(s, blocks);
      F::begin_values(o, p, before, 0);
      F::template await_scores<1>(s);
      scores.attend(tile, true, (unit + i) * kConfig.kv_block, weights, s, o, BlockBefore{blocks, o, block});
      F::pack(p, s[0]);
    }
    F::begin_values(o, p, blocks, 0);
    F::await_values(o);
    blocks.is_read(blocks.block());
  }

  /// The CTA's keys of a tile, whose units are `units` from `first` of the line on, have been walked.
  __device__ __forceinline__ void leave(const Tile<kConfig>& tile, const shared::LineCut& cut, int gang, int first,
                                        int units, const Scores& scores, Weights& weights, const Out& o) const {
    const shared::PrefixSpan gangs = {cut.gang_of(first), cut.gang_of(first + units - 1)};
    const PrefixPlaces<kConfig> places(params_, tiles_.number());
    weights.join();
#pragma unroll
    for (int i = 0; i < Scores::kOwnRows; ++i) {
      const int row = scores.row_of(i);
      const RowState<float> to =
          tile.has(row) ? places.row(gangs, gang, tile.batch_of(row), row % kConfig.own_rows()) : RowState<float>{};
      if (to.numbers != nullptr && F::first_of_row()) to.numbers[0] = weights.m[i], to.numbers[1] = weights.l[i];
      store_row(to.o, o, i);
    }
    if (F::thread() == 0 && tiles_.number() == 0 && gang == gangs.from) params_.prefix_spans[tile.batch] = gangs;
  }

  /// Stores the thread's columns of its row i, unless `to` is null. Neighbours have two columns each of every fragment:
  /// they exchange them, so that each has four of every other one. By all threads of a wave.
  __device__ __forceinline__ static void store_row(float* to, const Out& o, int i) {
    struct alignas(16) Four {
      float x[4];
    };
    static_assert(F::kOwnOuts == 2 && F::kOuts == 8 && kOutFragments % 2 == 0);
    const bool odd = F::lane() % 2 != 0;
#pragma unroll
    for (int d = 0; d < kOutFragments; d += 2) {
      Four four;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float lower = o[0][d].x[i][c], upper = o[0][d + 1].x[i][c];
        const float others = F::from_lane(odd ? lower : upper, F::lane() ^ 1);
        four.x[c] = odd ? others : lower;
        four.x[c + 2] = odd ? upper : others;
      }
      if (to == nullptr) continue;
      *reinterpret_cast<Four*>(to + (d + (odd ? 1 : 0)) * F::kOuts + F::lane() % 4 / 2 * 4) = four;
    }
  }

  const shared::DecodeMmaBoxParams& params_;
  char* memory_;
  OwnTiles<kConfig> tiles_;
};

}  // namespace heddle::portable
