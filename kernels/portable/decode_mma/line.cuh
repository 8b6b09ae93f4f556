// The line of units that the gangs of a launch share: all sequences one after the other, each in units of kv_block
// keys. A gang takes an equal part of the line, wherever it begins and ends; its CTAs read the same keys at the same
// time, each for other heads, so that memory gives whole rows of all heads. Lengths may be on the device: every wave
// reads them all and finds its place, so a launch needs none before it.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "sequences/sequence_rows.cuh"

namespace heddle::portable {

using shared::DecodeMmaParams;
using shared::SequenceSpan;

/// Where on the line: a unit of a sequence.
struct LinePlace {
  int batch, unit, units;  // units: of the sequence, at least 1
  SequenceSpan span;       // where sequences differ
  int kv_end;              // packed keys on the device: where the sequence ends, though not all its keys be used
};

template <auto kConfig, class F>
class Line {
 public:
  __device__ __forceinline__ explicit Line(const DecodeMmaParams& params) : params_(params) {}

  /// Units of all sequences, at least 1. By all threads of a wave, as all members are.
  __device__ __forceinline__ int units() const {
    int sum = 0;
    Ends ends;
    for (int first = 0; first < params_.sequences; first += kLanes) {
      const Found found = find(first, ends);
      sum += first + F::lane() < params_.sequences ? found.units : 0;
    }
    return F::wave_sum(sum);
  }

  /// The place of unit `number`, which the line has.
  __device__ __forceinline__ LinePlace at(int number) const {
    LinePlace place{};
    if constexpr (!kConfig.by_sequence) {
      place.units = units_of(params_.mod.kv_len);
      place.batch = number / place.units;
      place.unit = number - place.batch * place.units;
      return place;
    }
    int before = 0;
    Ends ends;
    for (int first = 0;; first += kLanes) {
      const Found found = find(first, ends);
      const bool there = first + F::lane() < params_.sequences;
      const int behind = before + F::sum_to(there ? found.units : 0);
      const int lane = F::first_lane(there && behind > number);
      if (lane >= 0) {
        place.batch = first + lane;
        place.units = F::from_lane(found.units, lane);
        place.unit = number - (F::from_lane(behind, lane) - place.units);
        place.kv_end = F::from_lane(found.kv_end, lane);
        // The members that a kernel reads.
        place.span.q_begin = F::from_lane(found.span.q_begin, lane);
        place.span.q_len = F::from_lane(found.span.q_len, lane);
        place.span.q_start = F::from_lane(found.span.q_start, lane);
        place.span.kv_begin = F::from_lane(found.span.kv_begin, lane);
        place.span.kv_len = F::from_lane(found.span.kv_len, lane);
        return place;
      }
      if (first + kLanes >= params_.sequences) return place;  // none such
      before = F::from_lane(behind, kLanes - 1);
    }
  }

  /// On to the next sequence, if there is one.
  __device__ __forceinline__ void next(LinePlace& place) const {
    place.unit = 0;
    if (++place.batch >= params_.sequences) return;
    if constexpr (!kConfig.by_sequence) return;
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
        kv = sequences::padded_keys(lengths, place.batch);
      }
      place.span = sequences::placed(lengths, place.batch, q, kv);
    } else {
      place.span = params_.mod.sequences[place.batch];
    }
    place.units = units_of(place.span.kv_len);
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

  /// Where packed sequences before have ended.
  struct Ends {
    int q = 0, kv = 0;
  };
  struct Found {
    SequenceSpan span;
    int units, kv_end;
  };

  /// A sequence without keys has a unit, too: its rows are stored there.
  __device__ __forceinline__ static int units_of(int kv_len) {
    const int units = (kv_len + kConfig.kv_block - 1) / kConfig.kv_block;
    return units > 0 ? units : 1;
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
        kv = sequences::padded_keys(lengths, i);
      }
      found.kv_end = kv.end;
      if (there) found.span = sequences::placed(lengths, i, q, kv);
    } else {
      if (there) found.span = params_.mod.sequences[i];
    }
    found.units = units_of(found.span.kv_len);
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
};

}  // namespace heddle::portable
