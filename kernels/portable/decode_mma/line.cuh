// The line of units that the gangs of a launch share: all sequences one after the other, each in units of kv_block
// keys. A gang takes an equal part of the line, wherever it begins and ends; its CTAs read the same keys at the same
// time, each for other heads, so that memory gives whole rows of all heads. Lengths may be on the device: every wave
// reads them all and finds its place, so a launch needs none before it. Where a mask bounds the keys
// (expr/key_bounds.h), a sequence's units are those of the runs that it leaves, found there, too.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "families/decode_mma/shared/decode_mma_chunks.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "portable/decode_mma/prefixes.cuh"
#include "portable/decode_mma/unit_keys.cuh"
#include "sequences/sequence_rows.cuh"

namespace heddle::portable {

using shared::DecodeMmaParams;

/// `MaskKeys`: of the generated text: keys(mod, rows) of a mask that bounds them.
template <auto kConfig, class F, class MaskKeys>
class Line {
  /// Where packed sequences before have ended.
  struct Ends {
    int q = 0, kv = 0;
  };

 public:
  using Place = LinePlace<kConfig>;

  __device__ __forceinline__ explicit Line(const DecodeMmaParams& params)
      : params_(params), prefixes_(params), head_(found_first()) {}

  /// Units of all sequences, at least 1. By all threads of a wave, as all members are.
  __device__ __forceinline__ int units() const {
    int sum = F::lane() < params_.sequences ? units_of(head_) : 0;
    Ends ends = head_ends_;
    for (int first = kLanes; first < params_.sequences; first += kLanes) {
      const Found found = find(first, ends);
      sum += first + F::lane() < params_.sequences ? units_of(found) : 0;
    }
    return F::wave_sum(sum);
  }

  /// The place of unit `number`, which the line has.
  __device__ __forceinline__ Place at(int number) const {
    Counted counted;
    return at(number, counted);
  }
  /// No unit of a line: whoever searches for it counts them.
  static constexpr int kNone = 0x7fffffff;
  /// A search for kNone counts all units. If all sequences are near ones, it also keeps the units of the lanes'
  /// sequences of both windows, and no later search looks at lengths.
  struct Counted {
    int units = 0, of_first = 0, of_second = 0;
  };
  /// Likewise. Where a search comes behind that of kNone, `counted` is what that has found.
  __device__ __forceinline__ Place at(int number, Counted& counted) const {
    Place place{};
    if (kSearchesAnew && number != kNone && keeps_all()) {
      stand_at_kept(place, number, counted);
      set_own_keys(place);
      return place;
    }
    if constexpr (kAlike) {
      place.units = place.keys.units(params_.mod.kv_len);
      place.batch = number / place.units;
      place.unit = number - place.batch * place.units;
      return place;
    }
    int before = 0;
    Ends ends = head_ends_;
    Found found = head_;
    for (int first = 0;; first += kLanes) {
      if (first > 0 || kSearchesAnew) found = find(first, ends);
      const bool there = first + F::lane() < params_.sequences;
      const int behind = before + F::sum_to(there ? units_of(found) : 0);
      const int lane = F::first_lane(there && behind > number);
      if (lane >= 0) {
        place.batch = first + lane;
        place.units = F::from_lane(found.units, lane);
        place.unit = number - (F::from_lane(behind, lane) - place.units);
        set_pages(place);
        if constexpr (kConfig.by_sequence) {
          place.kv_end = F::from_lane(found.kv_end, lane);
          // The members that a kernel reads.
          place.span.q_begin = F::from_lane(found.span.q_begin, lane);
          place.span.q_len = F::from_lane(found.span.q_len, lane);
          place.span.q_start = F::from_lane(found.span.q_start, lane);
          place.span.kv_begin = F::from_lane(found.span.kv_begin, lane);
          place.span.kv_len = F::from_lane(found.span.kv_len, lane);
        }
        if constexpr (kConfig.has_runs()) {
          place.keys.first.begin = F::from_lane(found.keys.first.begin, lane);
          place.keys.first.end = F::from_lane(found.keys.first.end, lane);
          place.keys.second.begin = F::from_lane(found.keys.second.begin, lane);
          place.keys.second.end = F::from_lane(found.keys.second.end, lane);
          place.keys.first_units = F::from_lane(found.keys.first_units, lane);
        }
        if constexpr (kConfig.prefixed()) {
          prefixes_.keep(first, found);
          const int shared_units = F::from_lane(found.shared_units, lane);
          place.shared_keys = F::from_lane(found.shared_keys, lane);
          if (kConfig.shares_beside_own() && place.unit < 0) {
            place.unit += shared_units;
            stand_before(place);
          }
        }
        return place;
      }
      before = F::from_lane(behind, kLanes - 1);
      if constexpr (kSearchesAnew) keep_counted(first, found, there ? found.units : 0, before, counted);
      if (first + kLanes >= params_.sequences) return place;  // none such
    }
  }

  /// How gangs share so many units.
  __device__ __forceinline__ shared::LineCut cut(int units, int gangs) const {
    return shared::line_cut(units, shared::gangs_of_line(units, params_.sequences, gangs));
  }
  /// kSearchesAnew: counts the units, cuts the line, and finds the place of the gang's first unit, if it has one.
  __device__ __forceinline__ Place first_of(int gang, int gangs, shared::LineCut& found) const {
    int unit = kNone;
    Counted counted;
#pragma unroll 1
    for (;;) {
      const Place place = at(unit, counted);
      if (unit != kNone) return place;
      found = cut(counted.units, gangs);
      if (gang >= found.gangs) return place;
      unit = found.begin(gang);
    }
  }

  /// shares_alone(): where a search for a unit of shared keys begins: at `before` of the line's units.
  struct Window {
    int first = 0, before = 0;
    Ends ends{};
  };
  /// shares_alone(): the place of unit `number`; the window moves on to it, or to the line's end if there is none such.
  /// `keeps`: the sequences near it are the wave's near ones from here on. `counted`: as at() has it.
  __device__ __forceinline__ Place shared_at(int number, Window& window, bool keeps, Counted& counted) const {
    Place place{};
    if (number != kNone && keeps_all()) {
      stand_at_kept(place, number, counted);
      stand_before(place);
      return place;
    }
    for (;;) {
      Ends ends = window.ends;
      const Found found = find(window.first, ends);
      const int behind = window.before + F::sum_to(found.shared_units);
      const int lane = F::first_lane(behind > number);
      if (lane >= 0) {
        place.batch = window.first + lane;
        place.unit = number - (F::from_lane(behind, lane) - F::from_lane(found.shared_units, lane));
        place.shared_keys = F::from_lane(found.shared_keys, lane);
        place.span.q_begin = F::from_lane(found.span.q_begin, lane);
        place.span.q_len = F::from_lane(found.span.q_len, lane);
        place.span.q_start = F::from_lane(found.span.q_start, lane);
        place.span.kv_begin = F::from_lane(found.span.kv_begin, lane);
        place.span.kv_len = F::from_lane(found.span.kv_len, lane);
        set_pages(place);
        if (keeps) prefixes_.keep(window.first, found);
        stand_before(place);
        return place;
      }
      window.before = F::from_lane(behind, kLanes - 1);
      keep_counted(window.first, found, found.shared_units, window.before, counted);
      if (window.first + kLanes >= params_.sequences) return place;  // none such
      window.first += kLanes;
      window.ends = ends;
    }
  }

  /// The unit with which the first chunk begins that begins at unit `number` or behind it.
  __device__ __forceinline__ int chunk_from(int number) const {
    const Place place = at(number);
    if (place.unit == 0) return number;  // or the line ends there
    const int units = shared::chunk_units(kConfig, place.units);
    const int to = (place.unit + units - 1) / units * units;
    return number - place.unit + (to < place.units ? to : place.units);
  }

  /// On to the next sequence, if there is one.
  __device__ __forceinline__ void next(Place& place) const {
    place.unit = 0;
    if constexpr (kConfig.prefixed()) return next_of_prefixes(place);
    if (++place.batch >= params_.sequences) return;
    if constexpr (kAlike) return;
    if constexpr (kConfig.device_lengths) {
      const shared::SequencesParams& lengths = params_.lengths;
      shared::RowSpan q, kv;
      if (lengths.q_packed) {
        const int begin = place.span.q_begin + place.span.q_len;
        q = {begin, shared::larger_row(begin, sequences::end_of_queries(lengths, place.batch))};
      } else {
        q = sequences::padded_queries(lengths, place.batch);
      }
      if (lengths.kv_packed) {
        kv = {place.kv_end, shared::larger_row(place.kv_end, sequences::end_of_keys(lengths, place.batch))};
        place.kv_end = kv.end;
      } else {
        kv = sequences::padded_keys<kConfig.listed_pages>(lengths, place.batch);
      }
      place.span = sequences::placed(lengths, place.batch, q, kv);
    } else if constexpr (kConfig.by_sequence) {
      place.span = params_.mod.sequences[place.batch];
    } else {
      place.span = span_of_each();
    }
    set_pages(place);
    set_own_keys(place);
  }

  /// Packed queries: where the last sequence ends.
  __device__ __forceinline__ int end_of_queries() const {
    if constexpr (kConfig.device_lengths) {
      int end = 0;
      for (int i = F::lane(); i < params_.sequences; i += kLanes) {
        end = shared::larger_row(end, sequences::end_of_queries(params_.lengths, i));
      }
      return F::wave_max(end);
    } else {
      const SequenceSpan& last = params_.mod.sequences[params_.sequences - 1];
      return last.q_begin + last.q_len;
    }
  }

 private:
  static constexpr int kLanes = kConfig.shape().wave;
  /// All sequences have the same units. A mask may read the sequence's number.
  static constexpr bool kAlike = !kConfig.by_sequence && !kConfig.bounded;
  /// Units are counted, and then one is found, by one piece of code (first_of(), SharedKeys::run()): code that runs
  /// once comes from memory, which took some 3,000 clocks a copy of the search.
  static constexpr bool kSearchesAnew = kConfig.prefixed() && !kConfig.shares_beside_own();

  struct Found {
    SequenceSpan span;
    int units, kv_end;
    UnitKeys<kConfig> keys;
    // prefixed: as PrefixTable; and units of the shared keys that stand before the sequence's own
    int first, shared_keys, shared_units;
  };
  __device__ __forceinline__ static int units_of(const Found& found) {
    if constexpr (kConfig.shares_beside_own()) return found.shared_units + found.units;
    return found.units;
  }

  /// All sequences are near ones, from the search for kNone on.
  __device__ __forceinline__ bool keeps_all() const {
    return kSearchesAnew && params_.sequences <= shared::kNearSequences;
  }
  /// `units`: of the lane's sequence. `sum`: those of all sequences until this window ends.
  __device__ __forceinline__ void keep_counted(int first, const Found& found, int units, int sum,
                                               Counted& counted) const {
    counted.units = sum;
    if (!keeps_all()) return;
    (first == 0 ? counted.of_first : counted.of_second) = units;
    prefixes_.keep(first, found);
  }
  /// keeps_all(): the place of unit `number`, but for its keys.
  __device__ __forceinline__ void stand_at_kept(Place& place, int number, const Counted& counted) const {
    static_assert(!kSearchesAnew || 2 * kLanes == shared::kNearSequences);
    int first = 0, units = counted.of_first, behind = F::sum_to(units), lane = F::first_lane(behind > number);
    if (lane < 0) {
      first = kLanes;
      units = counted.of_second;
      behind = F::from_lane(behind, kLanes - 1) + F::sum_to(units);
      lane = F::first_lane(behind > number);
    }
    place.batch = first + lane;
    place.unit = number - (F::from_lane(behind, lane) - F::from_lane(units, lane));
    place.span = prefixes_.span(place.batch);
    place.kv_end = place.span.kv_end;
    place.shared_keys = prefixes_.keys(place.batch);
    set_pages(place);
  }

  /// As next().
  __device__ __forceinline__ void next_of_prefixes(Place& place) const {
    if (place.is_shared) {
      place.is_shared = false;
      return set_own_keys(place);
    }
    if (++place.batch >= params_.sequences) return;
    if (place.batch % kLanes == 0 && !keeps_all()) {
      Ends ends = {place.span.q_begin + place.span.q_len, place.kv_end};
      prefixes_.keep(place.batch, find(place.batch, ends));
    }
    place.span = prefixes_.span(place.batch);
    place.kv_end = place.span.kv_end;
    place.shared_keys = prefixes_.keys(place.batch);
    set_pages(place);
    if (kConfig.shares_beside_own() && prefixes_.first(place.batch) == place.batch) return stand_before(place);
    set_own_keys(place);
  }
  /// At the keys that the sequence is the first one to share.
  __device__ __forceinline__ static void stand_before(Place& place) {
    place.is_shared = true;
    place.keys.set({{0, place.shared_keys}, shared::kNoKeys});
    place.units = place.keys.units(0);
  }
  __device__ __forceinline__ void set_own_keys(Place& place) const {
    set_keys(place.keys, place.batch, place.span);
    if constexpr (kConfig.prefixed()) place.keys.leave_out(place.shared_keys);
    place.units = place.keys.units(place.span.kv_len);
  }

  __device__ __forceinline__ void set_pages(Place& place) const {
    if constexpr (kConfig.listed_pages) place.first_entry = shared::first_entry(params_.table, place.batch);
  }

  __device__ __forceinline__ SequenceSpan span_of_each() const {
    SequenceSpan span{};
    span.q_len = params_.mod.q_len;
    span.q_start = params_.mod.q_start;
    span.kv_len = params_.mod.kv_len;
    return span;
  }

  /// The keys that the mask leaves the rows of a sequence.
  __device__ __forceinline__ void set_keys(UnitKeys<kConfig>& keys, int batch, const SequenceSpan& span) const {
    if constexpr (kConfig.bounded) {
      if (span.q_len <= 0 || span.kv_len <= 0) return keys.set(shared::no_keys());
      shared::MaskRows rows{};
      rows.b = batch;
      rows.q_len = span.q_len;
      rows.kv_len = span.kv_len;
      rows.q_start = span.q_start;
      rows.q_token = span.q_begin - span.q_start;
      rows.kv_token = span.kv_begin;
      rows.h = {0, params_.heads - 1};
      rows.q_idx = {span.q_start, static_cast<long long>(span.q_start) + span.q_len - 1};
      rows.kv_idx = {0, span.kv_len - 1};
      keys.set(MaskKeys::keys(params_.mod, rows));
    } else if constexpr (kConfig.has_runs()) {
      keys.set({{0, span.kv_len}, shared::kNoKeys});
    }
  }

  __device__ __forceinline__ Found found_first() {
    if constexpr (kSearchesAnew) return {};
    return find(0, head_ends_);
  }
  /// Sequence first + lane(), for those that there are.
  __device__ __forceinline__ Found find(int first, Ends& ends) const {
    const int i = first + F::lane();
    const bool there = i < params_.sequences;
    Found found{};
    if constexpr (kConfig.device_lengths) {
      const shared::SequencesParams& lengths = params_.lengths;
      shared::RowSpan q{}, kv{};
      if (lengths.q_packed) {
        q = packed(there ? sequences::end_of_queries(lengths, i) : 0, ends.q);
      } else if (there) {
        q = sequences::padded_queries(lengths, i);
      }
      if (lengths.kv_packed) {
        kv = packed(there ? sequences::end_of_keys(lengths, i) : 0, ends.kv);
      } else if (there) {
        kv = sequences::padded_keys<kConfig.listed_pages>(lengths, i);
      }
      found.kv_end = kv.end;
      if (there) found.span = sequences::placed(lengths, i, q, kv);
    } else if constexpr (kConfig.by_sequence) {
      if (there) found.span = params_.mod.sequences[i];
    } else {
      found.span = span_of_each();
    }
    set_keys(found.keys, i, found.span);
    if constexpr (kConfig.prefixed()) prefixes_.share(i, there, found);
    found.units = found.keys.units(found.span.kv_len);
    return found;
  }

  /// Begin and end of a packed sequence, of which each lane knows where its own would end. `before`: the largest end of
  /// earlier lanes' sequences, and then of these, too.
  __device__ __forceinline__ static shared::RowSpan packed(int end, int& before) {
    const int to = shared::larger_row(before, F::max_to(end));
    const int left = F::from_lane(to, F::lane() > 0 ? F::lane() - 1 : 0);
    const int begin = F::lane() > 0 ? left : before;
    before = F::from_lane(to, kLanes - 1);
    return {begin, to};
  }

  const DecodeMmaParams& params_;
  Prefixes<kConfig, F> prefixes_;
  Ends head_ends_;
  const Found head_;  // the first ones
};

}  // namespace heddle::portable
