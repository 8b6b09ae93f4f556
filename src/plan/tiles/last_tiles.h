// Which of a launch's tiles come last: the shortest ones even out the ends of its CTAs.
#pragma once

#include <cstdint>
#include <span>

namespace heddle::plan {

/// A tile costs `clocks`. `rank` orders all tiles by them, the most first; equal ones share it.
struct TileCost {
  std::int64_t clocks;
  int rank;
};

/// The first of the ranks that make up `share` of all clocks, the shortest: whole ranks, as many as fit.
int first_rank_of_share(std::span<const TileCost> tiles, int ranks, double share);

/// The like for the share, up to `most`, whose list `workers` of one speed finish first. `tiles` are in the order in
/// which they are drawn, except that those of the share come last, the longest of them first. The `usual` share is kept
/// unless another one of a few gains 0.3 %; the search ends within 1 % of the mean load. Lists of many tiles a worker
/// end evenly with any share, so they take the usual one, and so do those of one tile a worker.
int best_first_rank(std::span<const TileCost> tiles, int ranks, int workers, double usual, double most);

}  // namespace heddle::plan
