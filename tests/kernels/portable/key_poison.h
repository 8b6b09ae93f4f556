// NaN in the keys and values that a mask's bounds leave out of decode_mma's units.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "engine/attention_case.h"
#include "engine/poison.h"
#include "shared/key_runs.h"

namespace heddle::test {

/// The keys that units of `block` keys hold, the first of which begins at a multiple of `step`: the runs, and what lies
/// between them if the second one begins in the first one's last unit.
inline shared::KeyRuns held(const shared::KeyRuns& runs, int block, int step) {
  const auto aligned = [&](int key) { return key / step * step; };
  if (runs.second.empty()) return runs;
  const int begin = aligned(runs.first.begin), units = (runs.first.end - begin + block - 1) / block;
  if (aligned(runs.second.begin) >= begin + units * block) return runs;
  return {{runs.first.begin, runs.second.end}, shared::kNoKeys};
}

/// Poisons all keys and values but those that `kept` holds: entry of k's and v's first axis, head, row.
inline void poison_but(AttentionCase& c, const std::set<std::array<std::int64_t, 3>>& kept) {
  const auto left_out = [&](std::int64_t b, std::int64_t h, std::int64_t row) { return !kept.contains({b, h, row}); };
  poison_rows(c.k, left_out);
  poison_rows(c.v, left_out);
  if (c.spec().k_rest > 0) poison_rows(c.k_rest, left_out);
}

/// Poisons all keys and values but those in the runs of each sequence; returns how many those are, over all sequences.
inline long long poison_outside(AttentionCase& c, const std::vector<shared::KeyRuns>& runs) {
  std::set<std::pair<std::int64_t, std::int64_t>> kept;  // entries of k's and v's first axis, and rows
  long long keys = 0;
  for (std::size_t b = 0; b < runs.size(); ++b) {
    for (const shared::KeyRun& run : {runs[b].first, runs[b].second}) {
      for (int key = run.begin; key < run.end; ++key, ++keys) {
        kept.insert(c.row_of_key(static_cast<std::int64_t>(b), key));
      }
    }
  }
  const auto left_out = [&](std::int64_t b, std::int64_t, std::int64_t row) { return !kept.contains({b, row}); };
  poison_rows(c.k, left_out);
  poison_rows(c.v, left_out);
  if (c.spec().k_rest > 0) poison_rows(c.k_rest, left_out);
  return keys;
}

}  // namespace heddle::test
