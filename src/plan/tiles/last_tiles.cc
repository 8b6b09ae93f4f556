#include "plan/tiles/last_tiles.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

#include "plan/tiles/deal.h"

namespace heddle::plan {
namespace {

constexpr double kLeastGain = 0.003, kEvenEnough = 0.01;  // of all time
constexpr std::int64_t kMostTilesOfWorker = 24;           // more end within 1 % of each other
constexpr std::array kShares = {0.25, 0.04, 0.08, 0.18, 0.35, 0.5};

std::vector<std::int64_t> clocks_of_ranks(std::span<const TileCost> tiles, int ranks) {
  std::vector<std::int64_t> clocks(static_cast<std::size_t>(ranks), 0);
  for (const TileCost& tile : tiles) clocks[static_cast<std::size_t>(tile.rank)] += tile.clocks;
  return clocks;
}

int first_rank(std::span<const std::int64_t> clocks, double total, double share) {
  auto first = static_cast<int>(clocks.size());
  for (std::int64_t sum = 0; first > 0; --first) {
    sum += clocks[static_cast<std::size_t>(first - 1)];
    if (static_cast<double>(sum) > share * total) break;
  }
  return first;
}

double sum_of(std::span<const std::int64_t> clocks) {
  std::int64_t total = 0;
  for (const std::int64_t each : clocks) total += each;
  return static_cast<double>(total);
}

}  // namespace

int first_rank_of_share(std::span<const TileCost> tiles, int ranks, double share) {
  const std::vector<std::int64_t> clocks = clocks_of_ranks(tiles, ranks);
  return first_rank(clocks, sum_of(clocks), share);
}

int best_first_rank(std::span<const TileCost> tiles, int ranks, int workers, double usual, double most) {
  const std::vector<std::int64_t> clocks = clocks_of_ranks(tiles, ranks);
  const double total = sum_of(clocks);
  const int usual_first = first_rank(clocks, total, usual);
  const bool is_even = std::ssize(tiles) <= workers || std::ssize(tiles) > workers * kMostTilesOfWorker;
  if (ranks < 2 || is_even) return usual_first;
  std::vector<TileCost> sorted(tiles.begin(), tiles.end());
  std::ranges::stable_sort(sorted, {}, &TileCost::rank);
  std::vector<std::int64_t> drawn(tiles.size());
  const auto end_of = [&](int first) {  // of the list whose last tiles begin with this rank
    auto to = drawn.begin();
    for (const TileCost& tile : tiles) {
      if (tile.rank < first) *to++ = tile.clocks;
    }
    for (auto tile = std::ranges::lower_bound(sorted, first, {}, &TileCost::rank); tile != sorted.end(); ++tile) {
      *to++ = tile->clocks;
    }
    return static_cast<double>(std::ranges::max(deal(drawn, workers).loads));
  };
  const double usual_end = end_of(usual_first);
  double best_end = usual_end * (1 - kLeastGain);
  int best = usual_first;
  for (const double share : kShares) {
    if (best_end <= total / workers * (1 + kEvenEnough)) break;
    const int first = first_rank(clocks, total, share);
    if (share > most || first == usual_first) continue;
    const double end = end_of(first);
    if (end < best_end) best_end = end, best = first;
  }
  return best;
}

}  // namespace heddle::plan
