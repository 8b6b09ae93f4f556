// Finished rows: where the row of a score matrix is stored, and which sequences share their rows.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "mask/access.h"
#include "mask/shape.h"

namespace heddle::mask {

/// Sequences with equal groups share their rows. A sequence without queries has no row, so its first row alone would
/// not tell it from the next.
using Group = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
inline Group group_of(const BlockMaskAccess::State& state, std::size_t b) {
  return {state.sequence_row[b], state.shape.sequences[b].q_len, state.shape.sequences[b].kv_len};
}

inline std::int64_t stored_heads(const BlockMaskAccess::State& state) {
  return state.shared_by_heads ? 1 : state.shape.heads;
}

/// Calls f(sequence, sharers) once for each group: its first sequence, and how many it has.
template <class F>
void for_groups(const BlockMaskAccess::State& state, F&& f) {
  std::map<Group, std::int64_t> sharers;
  for (std::size_t b = 0; b < state.shape.sequences.size(); ++b) ++sharers[group_of(state, b)];
  for (std::size_t b = 0; b < state.shape.sequences.size(); ++b) {
    const auto found = sharers.find(group_of(state, b));
    if (found == sharers.end()) continue;
    f(static_cast<std::int64_t>(b), found->second);
    sharers.erase(found);
  }
}

/// Which stored row is the row of a score matrix; the row must be there.
inline std::int32_t stored_index(const BlockMaskAccess::State& state, std::int64_t sequence, std::int64_t head,
                                 std::int64_t q_block) {
  const auto s = static_cast<std::size_t>(sequence);
  const std::int64_t q_blocks = block_count(state.shape.sequences[s].q_len, state.block.q);
  const std::int64_t row = state.sequence_row[s] + (state.shared_by_heads ? 0 : head * q_blocks) + q_block;
  return state.row_index[static_cast<std::size_t>(row)];
}

inline RowRuns stored_runs(const BlockMaskAccess::State& state, std::int32_t stored) {
  const auto at = static_cast<std::size_t>(stored);
  const auto of = [at](const auto& values, const std::vector<std::int64_t>& offset) {
    return std::span(values).subspan(static_cast<std::size_t>(offset[at]),
                                     static_cast<std::size_t>(offset[at + 1] - offset[at]));
  };
  if (!state.window_offset.empty() && state.window_offset[at] != state.window_offset[at + 1]) {
    return {of(state.window_contents, state.window_offset), state.windows};
  }
  return of(state.runs, state.run_offset);
}

}  // namespace heddle::mask
