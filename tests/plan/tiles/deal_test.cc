// Jobs drawn by workers: the order and the loads.
#include "plan/tiles/deal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace heddle::test {
namespace {

using plan::Deal;

/// Loads are the sums of the jobs' costs; returns the longest.
std::int64_t longest(const std::vector<std::int64_t>& costs, const Deal& deal) {
  EXPECT_EQ(deal.workers.size(), costs.size());
  std::vector<std::int64_t> loads(deal.loads.size(), 0);
  for (std::size_t i = 0; i < costs.size(); ++i) loads.at(deal.workers[i]) += costs[i];
  EXPECT_EQ(loads, deal.loads);
  return *std::ranges::max_element(loads);
}

double mean(const Deal& deal) {
  return static_cast<double>(std::accumulate(deal.loads.begin(), deal.loads.end(), std::int64_t{0})) /
         static_cast<double>(deal.loads.size());
}

TEST(Deal, GoesRoundWhereJobsAreEqual) {
  const std::vector<std::int64_t> costs(7, 10);
  EXPECT_EQ(plan::deal(costs, 3).workers, (std::vector<std::uint16_t>{0, 1, 2, 0, 1, 2, 0}));
}

TEST(Deal, GivesTheNextJobToTheLeastLoaded) {
  EXPECT_EQ(plan::deal(std::vector<std::int64_t>{6, 3, 2, 2, 1}, 2).workers,
            (std::vector<std::uint16_t>{0, 1, 1, 1, 0}));
}

TEST(Deal, TakesNoJobsAndOneWorker) {
  EXPECT_EQ(plan::deal({}, 3).loads, (std::vector<std::int64_t>{0, 0, 0}));
  const std::vector<std::int64_t> costs = {5, 0, 7};
  EXPECT_EQ(plan::deal(costs, 1).workers, (std::vector<std::uint16_t>{0, 0, 0}));
  EXPECT_EQ(plan::deal(costs, 1).loads, (std::vector<std::int64_t>{12}));
}

TEST(Deal, IsNoWorseThanTheMeanAndOneJob) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::int64_t> costs(random() % 300);
    for (std::int64_t& cost : costs) cost = random() % (1 + random() % 1000);
    const Deal dealt = plan::deal(costs, static_cast<int>(1 + random() % 150));
    const std::int64_t largest = costs.empty() ? 0 : *std::ranges::max_element(costs);
    EXPECT_LE(static_cast<double>(longest(costs, dealt)), mean(dealt) + static_cast<double>(largest)) << seed;
    EXPECT_EQ(plan::deal(costs, static_cast<int>(dealt.loads.size())).workers, dealt.workers);
  }
}

}  // namespace
}  // namespace heddle::test
