// Which tiles come last: whole ranks of a share, and the share that ends soonest.
#include "plan/tiles/last_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/tiles/deal.h"

namespace heddle::plan {
namespace {

constexpr int kWorkers = 132;
constexpr double kUsual = 0.12;

struct List {
  std::vector<TileCost> tiles;
  int ranks = 0;
};

/// Causal tiles of 192 queries, head after head, the longest of each first: `queries` of them behind `before` keys.
List causal(std::int64_t queries, std::int64_t before, int heads) {
  List list;
  list.ranks = static_cast<int>((queries + 191) / 192);
  for (int head = 0; head < heads; ++head) {
    for (int rank = 0; rank < list.ranks; ++rank) {
      const std::int64_t keys = before + std::min(queries, std::int64_t{list.ranks - rank} * 192);
      list.tiles.push_back({keys / 80 + 3, rank});
    }
  }
  return list;
}

/// When the last worker ends, relative to the mean.
double end_of(const List& list, int first) {
  std::vector<std::int64_t> drawn;
  std::int64_t total = 0;
  for (const TileCost& tile : list.tiles) {
    total += tile.clocks;
    if (tile.rank < first) drawn.push_back(tile.clocks);
  }
  for (int rank = first; rank < list.ranks; ++rank) {
    for (const TileCost& tile : list.tiles) {
      if (tile.rank == rank) drawn.push_back(tile.clocks);
    }
  }
  return static_cast<double>(std::ranges::max(deal(drawn, kWorkers).loads)) * kWorkers / static_cast<double>(total);
}

TEST(LastTiles, AreWholeRanksOfTheShare) {
  const std::vector<TileCost> tiles = {{50, 0}, {30, 1}, {10, 2}, {10, 2}};
  EXPECT_EQ(first_rank_of_share(tiles, 3, 0), 3);
  EXPECT_EQ(first_rank_of_share(tiles, 3, 0.19), 3);
  EXPECT_EQ(first_rank_of_share(tiles, 3, 0.2), 2);
  EXPECT_EQ(first_rank_of_share(tiles, 3, 0.49), 2);
  EXPECT_EQ(first_rank_of_share(tiles, 3, 0.5), 1);
  EXPECT_EQ(first_rank_of_share(tiles, 3, 1), 0);
}

TEST(LastTiles, NeverEndLaterThanTheUsualOnes) {
  for (const std::int64_t queries : {1000, 4096, 8192, 16384, 40000}) {
    for (const std::int64_t before : {0, 4096, 16384}) {
      for (const int heads : {1, 5, 8, 16, 40}) {
        const List list = causal(queries, before, heads);
        const int first = best_first_rank(list.tiles, list.ranks, kWorkers, kUsual, 0.5),
                  usual = first_rank_of_share(list.tiles, list.ranks, kUsual);
        EXPECT_LE(end_of(list, first), end_of(list, usual)) << queries << " " << before << " " << heads;
      }
    }
  }
}

TEST(LastTiles, EvenOutTheEndsOfFewTilesAWorker) {
  const auto ends = [](const List& list) {
    return std::pair(end_of(list, first_rank_of_share(list.tiles, list.ranks, kUsual)),
                     end_of(list, best_first_rank(list.tiles, list.ranks, kWorkers, kUsual, 0.5)));
  };
  const auto [usual, best] = ends(causal(8192, 0, 16));
  EXPECT_GT(usual, 1.06);
  EXPECT_LT(best, 1.02);
  const auto [usual_of_chunk, best_of_chunk] = ends(causal(16384, 16384, 8));  // a chunk behind as many keys
  EXPECT_GT(usual_of_chunk, 1.055);
  EXPECT_LT(best_of_chunk, 1.045);
}

TEST(LastTiles, StayWithinTheMostAndAreTheUsualOfLongLists) {
  const List few = causal(8192, 0, 16), many = causal(65536, 0, 16);
  EXPECT_GE(best_first_rank(few.tiles, few.ranks, kWorkers, 0.03, 0.08),
            first_rank_of_share(few.tiles, few.ranks, 0.08));
  EXPECT_EQ(best_first_rank(many.tiles, many.ranks, kWorkers, kUsual, 0.5),
            first_rank_of_share(many.tiles, many.ranks, kUsual));
  EXPECT_EQ(best_first_rank({}, 0, kWorkers, kUsual, 0.5), 0);
}

}  // namespace
}  // namespace heddle::plan
