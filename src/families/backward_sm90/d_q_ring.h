// dQ's sums as a ring: how many slots it has, which tiles convert which units, and what the kernels know of sections.
#pragma once

#include <cstdint>
#include <vector>

#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/tiles/backward_schedule.h"
#include "problem/problem.h"

namespace heddle::plan {

struct DqRingShape {
  std::int64_t sections = 0;  // heads of keys of all sequences
  std::int64_t units = 0;     // of a slot: blocks of the longest sequence times the query heads of a head of keys
  std::int64_t slots = 0;     // that sections have in turns
  std::int64_t bundle = 0;    // sections whose tiles stand among each other in the list
  std::int64_t last = 0;      // sections of the last bundle, each with a slot of its own behind the others

  std::int64_t in_turns() const { return sections - last; }
  std::int64_t ring_units() const { return (slots + last) * units; }
  Bundles bundles() const { return {bundle, last}; }
};

/// Whether dQ's sums may be a ring: the host knows how long sequences are, and there are queries and keys.
bool takes_d_q_ring(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

/// Whether they are one by default: where it was measured to be faster (docs/notes/hopper_backward.md).
bool prefers_d_q_ring(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

/// All 0 if dQ's sums are no ring.
DqRingShape d_q_ring_shape(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

/// The turns of all tiles. Adds tiles without keys to the schedule, whose tiles stand in bundles of `shape.bundle`
/// sections: such as convert what no tile with keys can.
std::vector<shared::DqTurn> d_q_turns(const problem::AttentionProblem& problem,
                                      const shared::BackwardSm90Config& config, const DqRingShape& shape,
                                      BackwardSchedule& schedule);

}  // namespace heddle::plan
