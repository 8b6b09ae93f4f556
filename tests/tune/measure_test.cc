// Turns, rounds and medians, over runs whose duration is told.
#include "tune/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace heddle::tune {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Turns = std::vector<std::pair<std::size_t, int>>;

/// Runs that take `milliseconds` each, but for the turns of `late`, which take ten times as long.
TimedRuns runs_of(std::vector<double> milliseconds, Turns& turns, std::vector<std::size_t> late = {}) {
  return [=, &turns](std::size_t i, int runs) {
    const bool is_late = std::ranges::find(late, turns.size()) != late.end();
    turns.emplace_back(i, runs);
    return milliseconds[i] * 1e-3 * runs * (is_late ? 10 : 1);
  };
}

TEST(Measure, TakesTurnsOfAboutTenMilliseconds) {
  Turns turns;
  EXPECT_THAT(measure_in_turns(2, runs_of({4, 5}, turns)),
              ElementsAre(testing::DoubleEq(0.004), testing::DoubleEq(0.005)));
  const Turns expected = {{0, 1}, {0, 1}, {0, 3}, {1, 1}, {1, 1}, {1, 2}, {0, 3},
                          {1, 2}, {0, 3}, {1, 2}, {0, 3}, {1, 2}, {0, 3}, {1, 2}};
  EXPECT_EQ(turns, expected);
}

TEST(Measure, ARunAtLeastAndNotMoreThanAQueueHolds) {
  Turns turns;
  measure_in_turns(1, runs_of({5000}, turns));
  EXPECT_EQ(turns.back(), std::pair(std::size_t{0}, 1));
  measure_in_turns(1, runs_of({1e-4}, turns));
  EXPECT_EQ(turns.back(), std::pair(std::size_t{0}, 500));
  measure_in_turns(1, runs_of({0}, turns));
  EXPECT_EQ(turns.back(), std::pair(std::size_t{0}, 500));
}

TEST(Measure, TheMedianForgetsWhatDisturbedTwoRounds) {
  Turns turns;  // two runs to begin with, then turns 2 to 6
  EXPECT_THAT(measure_in_turns(1, runs_of({20}, turns, {3, 5})), ElementsAre(testing::DoubleEq(0.02)));
}

TEST(Measure, WhatIsFarBehindIsNotRunAgain) {
  Turns turns;
  EXPECT_THAT(measure_in_turns(3, runs_of({20, 31, 29}, turns)),
              ElementsAre(testing::DoubleEq(0.02), testing::DoubleEq(0.031), testing::DoubleEq(0.029)));
  EXPECT_EQ(std::ranges::count(turns, std::size_t{1}, &Turns::value_type::first), 3);
  EXPECT_EQ(std::ranges::count(turns, std::size_t{2}, &Turns::value_type::first), 7);
}

TEST(Measure, NothingAtAll) {
  Turns turns;
  EXPECT_THAT(measure_in_turns(0, runs_of({}, turns)), IsEmpty());
}

}  // namespace
}  // namespace heddle::tune
