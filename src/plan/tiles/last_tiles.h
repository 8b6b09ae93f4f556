// Which of a launch's tiles come last: the shortest ones even out the ends of its CTAs.
#pragma once

#include <cstdint>
#include <span>

namespace heddle::plan {

/// A tile's predicted clocks, and its rank: 0 for the longest tiles; equal clocks, equal rank.
struct TileCost {
  std::int64_t clocks;
  int rank;
};

/// Returns the first rank of the shortest tiles that together take `share` of all clocks. Ranks are not split, so the
/// tiles may take less.
int first_rank_of_share(std::span<const TileCost> tiles, int ranks, double share);

/// Chooses the share of tiles that come last, and returns its first rank. It simulates `workers` that draw `tiles` in
/// order, with the short tiles moved to the end, longest first, for `usual` and a few shares up to `most`. The earliest
/// end wins, but `usual` stays unless another share ends 0.3 % earlier. Lists with at most one tile per worker or with
/// more than 24 keep `usual`, because no share helps them.
int best_first_rank(std::span<const TileCost> tiles, int ranks, int workers, double usual, double most);

}  // namespace heddle::plan
