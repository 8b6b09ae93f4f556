// The order in which the planner puts kernels of forward_sm90, and its reasons.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "plan/plan.h"

namespace heddle::plan {

/// A kernel of a problem: its plan, and what counts beside the predicted time.
struct ForwardSm90Candidate {
  Choice choice;
  bool may_spill = false;
  bool weighs_each = false;                          // though others only drop
  bool masks_each = false;                           // though others have its bits stored
  bool reads_each = false;                           // element of a capture, though of others it comes in tiles
  bool numbers_each = false;                         // what depends on the key, though others do so once a key
  bool places_each = false;                          // row and key, though others look up one a tile
  bool reads_table = false;                          // for each pair, though others have it in shared memory
  bool copies_more = false;                          // of pages than others
  double computing = 0;                              // seconds, however long memory takes
  double steady = 0;                                 // batch_invariant: clocks a score in full steps, else 0
  std::int64_t stored_partial = 0, stored_room = 0;  // of the mask: StoredBlocks
  std::int64_t stored_bytes() const {
    return shared::stored_bytes(stored_room, choice.plan.part<shared::ForwardSm90Config>().warpgroups);
  }
  double seconds() const { return choice.plan.predicted->seconds; }
  /// Time used for ranking.
  double weighed_seconds() const;
  /// The best first.
  auto rank() const {
    return std::tuple(places_each, weighs_each, masks_each, numbers_each, may_spill, weighed_seconds(), computing);
  }
};

/// "128 queries x 128 keys, 2 warpgroups".
std::string describe(const shared::ForwardSm90Config& config);
/// Describes a plan: with pages also whether they are copied, or their rows gathered.
std::string describe(const Plan& plan);

/// Why `other` stands behind `first`: a sentence for explain().
std::string standing_behind(const ForwardSm90Candidate& other, const ForwardSm90Candidate& first);

}  // namespace heddle::plan
