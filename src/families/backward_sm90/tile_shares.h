// Tiles whose steps several CTAs share, so that all multiprocessors end at about the same time: the tiles that would
// begin last are cut, or all of them where there are fewer than multiprocessors.
#pragma once

#include <cstdint>

#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/tiles/backward_schedule.h"
#include "problem/problem.h"

namespace heddle::plan {

/// Predicted clocks of a CTA.
struct BackwardClocks {
  double step;  // 64 queries x the CTA's keys
  double tile;  // what a tile takes besides its steps
};
BackwardClocks backward_sm90_clocks(const shared::BackwardSm90Config& config);

/// Whether tiles may be shared: the host makes the list, and no order of adds and no partial sum belongs to a tile.
bool takes_shares(const problem::AttentionProblem& problem, const shared::BackwardSm90Config& config);

/// An item of steps [first, first + steps) of another one; its runs are added to the schedule's.
shared::BackwardItem share_of(shared::BackwardItem item, int first, int steps, BackwardSchedule& schedule);

/// Cuts items at the end of the list, at most `most` of them, if that ends sooner by more than it costs. Returns how
/// many places their sums take; 0: nothing is shared.
int share_tiles(const shared::BackwardSm90Config& config, int multiprocessors, std::int64_t most,
                BackwardSchedule& schedule);

/// Memory of shared tiles, behind the rest of a workspace. Offsets in bytes.
struct TileSharesMemory {
  std::int64_t counters, sums;
  std::int64_t bytes;
};
TileSharesMemory tile_shares_memory(const shared::BackwardSm90Config& config, int places);

}  // namespace heddle::plan
