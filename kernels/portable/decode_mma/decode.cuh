// Few queries against many keys, bound by memory. Each CTA walks its gang's part of the line (line.cuh) for one tile of
// every sequence there: up to 64 rows, queries of heads that read the same keys. Its waves share the keys of a unit, 16
// each, and wait for nobody while they walk: a wave brings its own keys and values, by copies into a ring of its own,
// which goes on across the ends of tiles. Of more than 32 rows two or four waves have rows each of the same keys, share
// a ring, and wait for each other. At the end of a tile the waves' rows meet in shared memory; where a tile's keys are
// shared with other gangs, the last CTA to come merges what all have left, in the order of the keys.
#pragma once

#include "families/decode_mma/shared/decode_mma_memory.h"
#include "portable/decode_mma/blocks_ahead.cuh"
#include "portable/decode_mma/chunk_states.cuh"
#include "portable/decode_mma/key_chunks.cuh"
#include "portable/decode_mma/line.cuh"
#include "portable/decode_mma/own_key_steps.cuh"
#include "portable/decode_mma/own_span.cuh"
#include "portable/decode_mma/own_tiles.cuh"
#include "portable/decode_mma/parts.cuh"
#include "portable/decode_mma/prefix_rows.cuh"
#include "portable/decode_mma/prefixes.cuh"
#include "portable/decode_mma/wide_rows.cuh"
#include "portable/rows/descales.cuh"
#include "portable/rows/tile_output.cuh"
#include "portable/rows/tile_scores.cuh"

namespace heddle::portable {

/// `F`: the architecture's fragments. `Mods`: of the generated text (TileScores). `MaskKeys`: of it, too (Line).
template <auto kConfig, class F, class Mods, class MaskKeys>
class Decode {
 public:
  __device__ __forceinline__ Decode(const DecodeMmaParams& params, char* memory, int tile)
      : params_(params), memory_(memory), scores_(params, params.mod), tiles_(params, tile) {}

  /// As one of `gangs` gangs.
  __device__ __forceinline__ void run(int gang, int gangs) {
    const OwnLine line(params_);
    if constexpr (kConfig.shares_elsewhere()) {
      shared::LineCut cut{};
      const Place first = line.first_of(gang, gangs, cut);
      if (gang < cut.gangs) walk(line, cut, gang, first);
    } else {
      const shared::LineCut cut = kConfig.counts_units() ? line.cut(line.units(), gangs) : params_.cut;
      if (gang < cut.gangs) walk(line, cut, gang);
    }
    // Before a gang without keys writes; and before the CTA ends, so that the run ends behind the kernel of shared
    // keys.
    if constexpr (kConfig.early || kConfig.shares_elsewhere()) F::wait_for_previous();
    if (gang == 0 && params_.q_packed && tiles_.q_first() == 0) fill(line.end_of_queries(), params_.q_rows, 0);
  }

 private:
  using Scores = TileScores<kConfig, F, Mods, DecodeMmaParams>;
  static constexpr int kFragments = Scores::kFragments, kKeyFragments = Scores::kKeyFragments;
  static constexpr int kOutFragments = kConfig.wave_columns() / F::kOuts;
  static constexpr bool kHasMods = kConfig.masked || kConfig.weighted || Scores::kMapped;
  static constexpr shared::DecodeMmaMemory kMemory = shared::decode_mma_memory(kConfig);
  static constexpr int kStates = shared::decode_state_waves(kConfig);
  using Out = typename F::Out[kFragments][kOutFragments];
  using OwnLine = Line<kConfig, F, MaskKeys>;
  using Place = typename OwnLine::Place;

  /// `found`: shares_elsewhere(): the place of the CTA's first unit.
  __device__ __forceinline__ void walk(const OwnLine& line, const shared::LineCut& cut, int gang,
                                       const Place& found = {}) {
    typename F::Stream stream(memory_);
    int unit = cut.begin(gang);
    int end = cut.begin(gang + 1);
    if constexpr (kConfig.chunked()) {
      unit = line.chunk_from(unit);
      end = line.chunk_from(end);
      if (unit == end) return;
    }
    const int wave_key = scores_.key_wave() * kConfig.wave_keys();  // of a unit
    const int own_keys = kConfig.wide() ? 0 : wave_key;             // where the block that the wave reads begins
    Place place = kConfig.shares_elsewhere() ? found : line.at(unit);
    BlocksAhead<kConfig, F, Mods, MaskKeys> ahead(params_, tiles_, line, stream, place, unit, end, own_keys);
    // Queries that copies bring come before the first blocks, which are read behind them. (Queries that are loaded into
    // registers would only hold up the blocks.)
    constexpr bool kQueriesFirst = F::kCopiesQueries && !kConfig.early;
    if constexpr (!kQueriesFirst) ahead.fill_ring();
    if constexpr (kConfig.early) F::wait_for_previous();
    [[maybe_unused]] bool fills = kQueriesFirst;
    [[maybe_unused]] ChunkedTile<kConfig, F> chunks;
    [[maybe_unused]] bool begins = true, before = false;  // chunked: a tile begins with this chunk; one came before
    typename F::Queries q[kFragments];
    while (unit < end) {
      const int first = unit - place.unit;  // of the tile
      int stop = first + place.units < end ? first + place.units : end;
      const Tile<kConfig> tile = tiles_.at(place);
      const bool loads = !kConfig.chunked() || begins;
      const auto query_row = [&](int i) { return tile.query_row(params_, scores_.row_of(i)); };
      if constexpr (F::kCopiesQueries) {
        if (loads) stream.ask_queries(query_row);
      }
      if constexpr (kQueriesFirst) {
        if (fills) ahead.fill_ring();
        fills = false;
      }
      if constexpr (kConfig.chunked()) {
        if (begins) chunks = begin_chunks({params_, cut, gang, tiles_.number(), first, place.units}, before);
        before = true;
        const int behind = chunks.next_end();
        if (behind < stop) stop = behind;
      }
      if (!kConfig.chunked() || begins) begin_mods(tile, place);
      RowWeights<kConfig, F> weights = scores_.no_weights();
      Out o;
      clear(o);
      if (loads) {
        if constexpr (F::kCopiesQueries) {
          stream.queries_arrive();
        } else {
          stream.load_queries(q, query_row);
        }
        apply_descales<kConfig, F>(q, params_, tile, scores_, tiles_.kv_head());
      }
      if constexpr (kConfig.shares_beside_own()) {
        if (joins(place)) JoinedRows<kConfig, F>(params_, tile, tiles_.number()).begin();
      }
      const PrefixRowsOf<kConfig, F> prefix(params_, tiles_.number(), tile, joins(place), weights);
      // The words that count CTAs are looked at here, and begin to count when the waves have merged. (The first wave
      // would wait for memory between both.)
      FoundWords words{};
      if constexpr (kLooksEarly) words = look_at_words(shared_tile_at(place, cut, gang, unit, stop), chunks);
      if constexpr (kConfig.by_warpgroups()) {
        const WarpgroupSteps<kConfig, F, Scores> steps(memory_, scores_, has_rows(tile));
        steps.walk(tile, place, stop - unit, stream, ahead, weights, o);
        place.unit += stop - unit;
        unit = stop;
      } else {
#pragma unroll 1
        for (; unit < stop; ++unit, ++place.unit) {
          ahead.ask();
          const int kv_first = place.keys.begin(place.unit);
          stream.keys_arrive();
          const bool any =
              kv_first + own_keys < place.keys.run(place.unit, tile.kv_len).end && has_rows(tile) && ahead.is_left();
          typename F::Scores s[kFragments][kKeyFragments];
          if (any) {
            F::multiply_keys(s, q, stream, wave_key - own_keys);
            if constexpr (kConfig.wide()) {
              const WideRows<kConfig, F, Scores> wide(memory_, scores_);
              scores_.attend(tile, true, kv_first, weights, s, o, wide);
              wide.add_values(o, s, stream);
            } else {
              scores_.attend(tile, true, kv_first, weights, s, o);
            }
          }
          if constexpr (!kConfig.wide()) {
            stream.values_arrive();
            if (any) F::add_values(o, s, stream, 0);
          }
          stream.block_is_read();
        }
      }
      finish(tile, place, shared_tile_at(place, cut, gang, unit, stop), chunks, words, prefix, weights, o);
      if constexpr (kConfig.chunked()) begins = chunks.is_last();
      if (place.unit == place.units) line.next(place);
    }
  }

  /// Prepares a tile, of whose chunks the CTA is to walk the first of its own. `before`: it has walked another tile's.
  __device__ __forceinline__ ChunkedTile<kConfig, F> begin_chunks(const ChunkedTile<kConfig, F>& chunks,
                                                                  bool before) const {
    if (before) F::barrier();  // the parts of the tile before have been folded
    chunks.find_parts(parts());
    return chunks;
  }

  /// The tile of the sequence at `place`, which is unit `unit` of the line. The CTA's units of the tile end at `stop`.
  __device__ __forceinline__ SharedTile<kConfig, F> shared_tile_at(const Place& place, const shared::LineCut& cut,
                                                                   int gang, int unit, int stop) const {
    const int first = unit - place.unit;
    int from = gang, to = gang;  // gangs that have the tile's keys
    if (cut.begin(gang) > first) from = cut.gang_of(first);
    if (stop < first + place.units) to = cut.gang_of(first + place.units - 1);
    return {params_, from, to, gang, tiles_.number()};
  }

  using FoundWords = typename SharedTile<kConfig, F>::Found;
  /// Warpgroups, and waves that walk chunks, lack the registers to keep what was found while they walk.
  static constexpr bool kLooksEarly = !kConfig.by_warpgroups() && !kConfig.chunked();
  /// Whether this thread counts the CTA's arrival, once the units that it is about to walk have been walked.
  __device__ __forceinline__ static bool counts(const SharedTile<kConfig, F>& tile,
                                                const ChunkedTile<kConfig, F>& chunks) {
    return F::thread() == 0 && (kConfig.chunked() ? chunks.is_last() && chunks.is_shared() : tile.is_shared());
  }
  __device__ __forceinline__ static FoundWords look_at_words(const SharedTile<kConfig, F>& tile,
                                                             const ChunkedTile<kConfig, F>& chunks) {
    if (!counts(tile, chunks)) return {};
    if constexpr (kConfig.chunked()) return {chunks.word().found(), 0};
    return tile.found();
  }
  __device__ __forceinline__ static void begin_words(const FoundWords& words, const SharedTile<kConfig, F>& tile,
                                                     const ChunkedTile<kConfig, F>& chunks) {
    if (!counts(tile, chunks)) return;
    if constexpr (kConfig.chunked()) return chunks.word().begin(words.of_tile);
    tile.begin(words);
  }
  /// Rows of the place's tile are joined with those of another one.
  __device__ __forceinline__ static bool joins(const Place& place) {
    return kConfig.prefixed() && place.shared_keys > 0;
  }

  /// A sequence's own rows are the first wave's.
  __device__ __forceinline__ bool has_rows(const Tile<kConfig>& tile) const {
    if constexpr (kConfig.shares_beside_own() && kConfig.row_waves > 1) {
      static_assert(kConfig.own_rows() <= kConfig.wave_rows());
      return tile.is_shared || scores_.row_wave() == 0;
    }
    return tiles_.has_queries(tile);
  }

  __device__ __forceinline__ static void clear(Out& o) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int d = 0; d < kOutFragments; ++d) F::clear(o[f][d]);
    }
  }

  __device__ __forceinline__ void begin_mods(const Tile<kConfig>& tile, const Place& place) {
    if constexpr (kHasMods && kConfig.device_lengths && !kConfig.prefixed()) {
      own_span<kConfig>() = place.span;  // by all threads of the wave alike: each reads what it wrote
    }
    if constexpr (kHasMods) scores_.begin(tile);
  }

  /// The CTA's keys of the place's tile have been walked; chunked: those of a chunk.
  __device__ __forceinline__ void finish(const Tile<kConfig>& tile, const Place& place,
                                         const SharedTile<kConfig, F>& shared_tile,
                                         const ChunkedTile<kConfig, F>& chunks, FoundWords words,
                                         const PrefixRowsOf<kConfig, F>& prefix, RowWeights<kConfig, F>& weights,
                                         Out& o) {
    if constexpr (!kLooksEarly) words = look_at_words(shared_tile, chunks);
    float of_values = 1;
    if constexpr (kConfig.converts()) of_values = descale_of(params_.descales.v, tile.batch, tiles_.kv_head());
    const auto store = [&](int row, int column, const auto& sums, const auto& merged, const auto&...) {
      const int batch = tile.batch_of(row), head = tile.head_of(row), at = tile.q_begin_of(row) + tile.query_of(row);
      RowEnd<float> row_end = merged.close(0, params_.sinks, head);
      if constexpr (kConfig.converts()) {
        row_end.factor *= kConfig.prefixed() ? descale_of(params_.descales.v, batch, tiles_.kv_head()) : of_values;
      }
      store_run<kConfig, F>(params_, batch, head, at, column, row_end.factor, sums);
      if (column == 0) store_row_numbers<kConfig, float>(params_, batch, head, at, row_end);
    };
    if constexpr (kConfig.chunked()) return finish_chunk(tile, shared_tile, chunks, words, weights, o, store);
    const JoinedRows<kConfig, F> joined(params_, tile, tiles_.number());
    const auto end_row = [&](int row, int column, const auto& sums, const auto& merged) {
      if constexpr (kConfig.shares_beside_own()) {
        if (joins(place)) return leave_run(joined.row(row), column, sums, merged);
      } else if constexpr (kConfig.shares_elsewhere()) {
        if (joins(place)) return prefix.join(row, column, sums, merged, store);
      }
      store(row, column, sums, merged);
    };
    const bool shares = shared_tile.is_shared();
    float* const part = shares ? shared_tile.part() : nullptr;
    merge_waves(tile, weights, o, [&](int row, int column, const auto& sums, const auto& merged, const auto&) {
      if (!shares) return end_row(row, column, sums, merged);
      leave_run(row_of_part<kConfig>(part, row), column, sums, merged);
    });
    begin_words(words, shared_tile, chunks);
    F::barrier();  // the states may be left anew; parts are seen
    bool stores = true;
    if (shares) {
      stores = shared_tile.merge(
          *reinterpret_cast<int*>(memory_ + kMemory.last), weights, [&](int row) { return tile.has(row); }, end_row);
    }
    if constexpr (kConfig.shares_beside_own()) {
      if (joins(place) && stores) joined.join(reinterpret_cast<int*>(memory_ + kMemory.arrived), weights, store);
      if (tile.is_shared) return;
    }
    if constexpr (kConfig.by_sequence) {
      if (stores && !params_.q_packed) fill(tile.q_len, params_.q_rows, tile.batch);
    }
  }

  /// chunked: which parts there are of the tile.
  __device__ __forceinline__ int* parts() const { return reinterpret_cast<int*>(memory_ + kMemory.parts); }

  /// A chunk's keys have been walked.
  template <class Store>
  __device__ __forceinline__ void finish_chunk(const Tile<kConfig>& tile, const SharedTile<kConfig, F>& shared_tile,
                                               const ChunkedTile<kConfig, F>& chunks, const FoundWords& words,
                                               RowWeights<kConfig, F>& weights, Out& o, const Store& store) {
    if (!tiles_.has_queries(tile)) return;
    if constexpr (kConfig.by_warpgroups()) {
      end_chunk_of_warpgroups(tile, chunks, weights, o, store);
    } else if (chunks.is_only_one()) {
      merge_waves(tile, weights, o, store);
    } else {
      constexpr int kRun = kConfig.wide() ? F::kOutRun : kRunOfPart<float>;
      const auto left = [&](int row, int column) { return chunks.template left<kRun>(row, column); };
      merge_waves(
          tile, weights, o,
          [&](int row, int column, const auto& sums, const auto& merged, const auto& before) {
            chunks.leave(row, column, sums, merged, before);
          },
          left);
    }
    begin_words(words, shared_tile, chunks);
    F::barrier();  // the states may be left anew
    if (!chunks.is_last()) return;
    if (chunks.is_shared()) {
      int& last = *reinterpret_cast<int*>(memory_ + kMemory.last);
      if (F::thread() == 0) last = chunks.arrive() ? 1 : 0;
      F::barrier();
      if (last == 0) return;
    }
    const auto has = [&](int row) { return tile.has(row); };
    if constexpr (kConfig.by_warpgroups()) {
      if (!chunks.ends()) States(memory_, scores_).fold_parts(chunks, parts(), weights, has, store);
    } else if (!chunks.is_only_one()) {
      chunks.fold_parts(parts(), weights, has, store);
    }
    if constexpr (kConfig.by_sequence) {
      if (!params_.q_packed && tile.q_first == 0) fill(tile.q_len, params_.q_rows, tile.batch);
    }
  }

  /// The rows' sums become those of all threads that have parts of them.
  __device__ __forceinline__ void sum_rows(RowWeights<kConfig, F>& weights) const {
    weights.join();
    if constexpr (kConfig.wide()) WideRows<kConfig, F, Scores>(memory_, scores_).add(weights.l);
  }

  using States = ChunkStates<kConfig, F, Scores>;
  /// The chunk joins what its CTA has left of the tile, and is left, or if that is the whole tile stored.
  template <class Store>
  __device__ __forceinline__ void end_chunk_of_warpgroups(const Tile<kConfig>& tile,
                                                          const ChunkedTile<kConfig, F>& chunks,
                                                          RowWeights<kConfig, F>& weights, Out& o,
                                                          const Store& store) const {
    const States states(memory_, scores_);
    sum_rows(weights);
    if (chunks.joins()) states.join(chunks, weights, o);
    if (!chunks.ends()) return states.leave(chunks, weights, o);
    WideRows<kConfig, F, Scores>(memory_, scores_)
        .visit(
            weights, o, [&](int row) { return tile.has(row); }, NothingBefore(), store);
  }

  /// Calls visit(row, column, sums, weights, found) for the columns of the tile's rows, as merge_parts() does: sums of
  /// o of all waves, from `column` on, and in row 0 of `weights` the maximum and the sum. `found`: before(row, column).
  template <class Visit, class Before = NothingBefore>
  __device__ __forceinline__ void merge_waves(const Tile<kConfig>& tile, RowWeights<kConfig, F>& weights, Out& o,
                                              Visit&& visit, Before&& before = {}) {
    sum_rows(weights);
    if constexpr (kConfig.wide()) {
      WideRows<kConfig, F, Scores>(memory_, scores_)
          .visit(
              weights, o, [&](int row) { return tile.has(row); }, before, visit);
    } else {
      float* const states = reinterpret_cast<float*>(memory_ + kMemory.states);
      const auto of_wave = [&](int wave, int row) {
        return row_of_part<kConfig>(states + wave * (kConfig.live_rows * shared::decode_row_floats(kConfig)), row);
      };
      leave_waves(tile, of_wave, weights, o);
      F::barrier();
      const auto of_waves = [&](int wave, int row) {
        RowState<float> state = of_wave(wave, row);
        if constexpr (shared::decode_folds_states(kConfig)) state.numbers += 2;
        return state;
      };
      merge_parts<kConfig, F>(
          kConfig.live_rows, kStates, of_waves, weights, [&](int row) { return tile.has(row); },
          [&](int row, int column, const auto& sums, const auto& merged) {
            visit(row, column, sums, merged, before(row, column));
          });
    }
  }

  /// The waves' rows stand at of_wave(wave, row), for `wave` below kStates.
  template <class OfWave>
  __device__ __forceinline__ void leave_waves(const Tile<kConfig>& tile, OfWave&& of_wave,
                                              RowWeights<kConfig, F>& weights, Out& o) {
    const auto own = [&](int wave) {
      return [&, wave](int i) {
        const int row = scores_.row_of(i);
        return tile.has(row) ? of_wave(wave, row) : RowState<float>{};
      };
    };
    if constexpr (shared::decode_folds_states(kConfig)) {
      const bool upper = scores_.key_wave() >= kStates;
      if (upper) leave_state(own(scores_.key_wave() - kStates), weights, o);
      F::barrier();
      if (!upper) add_to_state<kConfig, F>(own(scores_.key_wave()), weights, o);
    } else {
      leave_state(own(scores_.key_wave()), weights, o);
    }
  }
  /// Rows [begin, end) of the tile's heads hold no query: o = 0, and lse is that of none.
  __device__ __forceinline__ void fill(int begin, int end, int batch) const {
    if (begin >= end) return;
    Place place{};
    place.batch = batch;
    const Tile<kConfig> tile = tiles_.at(place);
    for (int i = 0; i < tile.heads; ++i) {
      store_fill<kConfig, F>(params_, {begin, end - begin, tile.head + i, batch}, false);
    }
  }

  const DecodeMmaParams& params_;
  char* memory_;
  Scores scores_;
  OwnTiles<kConfig> tiles_;
};

}  // namespace heddle::portable
