// Jobs dealt to workers: the order, the loads, and how even they are.
#include "plan/deal.h"

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

TEST(Deal, ExchangesLateJobsWhereTheOrderLeftThemUneven) {
  // In order: 0 gets 3 + 2 + 2, 1 gets 3 + 2. One exchange of a 3 for a 2 makes both 6.
  const std::vector<std::int64_t> costs = {3, 3, 2, 2, 2};
  EXPECT_EQ(longest(costs, plan::deal(costs, 2)), 6);
  // A short job first and long ones last.
  const std::vector<std::int64_t> rising = {1, 1, 1, 1, 4, 8};
  EXPECT_EQ(longest(rising, plan::deal(rising, 2)), 8);
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

// Sixteen sections of 64 jobs, 1 to 64 long, for 132 workers: in order alone the longest has 11 % more than the mean.
TEST(Deal, IsEvenAfterShortSections) {
  std::vector<std::int64_t> costs;
  for (int section = 0; section < 16; ++section) {
    for (std::int64_t cost = 64; cost > 0; --cost) costs.push_back(1000 * cost);
  }
  const Deal dealt = plan::deal(costs, 132);
  EXPECT_LE(static_cast<double>(longest(costs, dealt)), 1.01 * mean(dealt));
}

}  // namespace
}  // namespace heddle::test
