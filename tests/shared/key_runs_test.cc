// Runs of keys against sets of keys, and intervals of terms against every number of small ranges.
#include "shared/key_runs.h"

#include <gtest/gtest.h>

#include <bitset>
#include <random>
#include <vector>

namespace heddle::shared {
namespace {

constexpr int kKeys = 12;
using Keys = std::bitset<kKeys>;

Keys set_of(const KeyRuns& runs) {
  Keys keys;
  for (int key = 0; key < kKeys; ++key) {
    const auto in = [&](const KeyRun& run) { return run.begin <= key && key < run.end; };
    keys[static_cast<std::size_t>(key)] = in(runs.first) || in(runs.second);
  }
  return keys;
}

/// All pairs of runs; sets of keys that two runs give.
std::vector<KeyRuns> all_runs() {
  std::vector<KeyRuns> all = {no_keys()};
  for (int a = 0; a < kKeys; ++a) {
    for (int b = a + 1; b <= kKeys; ++b) {
      all.push_back({{a, b}, kNoKeys});
      for (int c = b + 1; c < kKeys; ++c) {
        for (int d = c + 1; d <= kKeys; ++d) all.push_back({{a, b}, {c, d}});
      }
    }
  }
  return all;
}

int runs_in(const Keys& keys) {
  int count = 0;
  for (std::size_t key = 0; key < kKeys; ++key) count += keys[key] && (key == 0 || !keys[key - 1]) ? 1 : 0;
  return count;
}

/// In order, apart, and the first one there if there is any.
void expect_whole(const KeyRuns& runs) {
  EXPECT_TRUE(!runs.first.empty() || runs.second.empty());
  EXPECT_TRUE(runs.second.empty() || runs.first.end < runs.second.begin);
}

TEST(KeyRuns, UniteAndIntersectAsSets) {
  const std::vector<KeyRuns> all = all_runs();
  std::mt19937 rng(1);
  for (const KeyRuns& x : all) {
    for (int i = 0; i < 60; ++i) {
      const KeyRuns& y = all[rng() % all.size()];
      const KeyRuns united = unite(x, y), both = intersect(x, y);
      expect_whole(united);
      expect_whole(both);
      const Keys any_of = set_of(x) | set_of(y), all_of = set_of(x) & set_of(y);
      ASSERT_EQ(set_of(united) & any_of, any_of);
      ASSERT_EQ(set_of(both) & all_of, all_of);
      ASSERT_TRUE(runs_in(any_of) > 2 || set_of(united) == any_of);
      ASSERT_TRUE(runs_in(all_of) > 2 || set_of(both) == all_of);
    }
  }
}

TEST(KeyRuns, OfThreeTheNearerTwoBecomeOne) {
  const KeyRuns three = with_run({{0, 2}, {4, 5}}, {9, 11});
  EXPECT_EQ(three, (KeyRuns{{0, 5}, {9, 11}}));
  EXPECT_EQ(with_run({{0, 2}, {7, 8}}, {9, 11}), (KeyRuns{{0, 2}, {7, 11}}));
}

TEST(KeyRuns, AreCutToTheKeysThatThereAre) {
  EXPECT_EQ(keys_within({-5, 3}, {0, 9}), (KeyRuns{{0, 4}, kNoKeys}));
  EXPECT_EQ(keys_within({8, kFar}, {0, 9}), (KeyRuns{{8, 10}, kNoKeys}));
  EXPECT_TRUE(keys_within({10, kFar}, {0, 9}).empty());
  EXPECT_TRUE(keys_within({4, 3}, {0, 9}).empty());
  EXPECT_TRUE(keys_within({0, 3}, {0, -1}).empty());
  EXPECT_TRUE(all_keys({0, -1}).empty());
}

// Every x of which some other number makes the statement true lies in the interval; and its ends are such ones.
template <class Holds>
void expect_tight(Interval found, Interval others, Holds&& holds) {
  for (long long x = -60; x <= 60; ++x) {
    bool some = false;
    for (long long other = others.lo; other <= others.hi; ++other) some = some || holds(x, other);
    const bool within = found.lo <= x && x <= found.hi;
    ASSERT_TRUE(within || !some) << x;
    ASSERT_TRUE(some || (x != found.lo && x != found.hi)) << x;
  }
}

TEST(KeyRuns, TermsOfSumsAreTight) {
  for (const long long coefficient : {1, -1, 3, -4}) {
    for (long long lo = -7; lo <= 7; ++lo) {
      for (const Interval rest : {Interval{0, 0}, Interval{-3, 2}, Interval{5, 11}}) {
        for (const Interval sum : {Interval{lo, lo + 3}, Interval{-kFar, lo}, Interval{lo, kFar}}) {
          expect_tight(terms_of_sum(sum, coefficient, rest), rest, [&](long long x, long long other) {
            const long long value = coefficient * x + other;
            return sum.lo <= value && value <= sum.hi;
          });
        }
      }
    }
  }
}

TEST(KeyRuns, DifferencesAreThoseOfTheRelation) {
  const Relation all[] = {Relation::lt, Relation::le, Relation::gt, Relation::ge, Relation::eq};
  const auto holds = [](Relation relation, long long x) {
    return relation == Relation::lt   ? x < 0
           : relation == Relation::le ? x <= 0
           : relation == Relation::gt ? x > 0
           : relation == Relation::ge ? x >= 0
                                      : x == 0;
  };
  for (const Relation relation : all) {
    expect_tight(differences(relation), {0, 0}, [&](long long x, long long) { return holds(relation, x); });
  }
  EXPECT_EQ(differences(Relation::ne), everything());
}

TEST(KeyRuns, OperationsAreTurnedAround) {
  for (long long lo = -6; lo <= 6; ++lo) {
    for (const Interval value : {Interval{lo, lo + 4}, Interval{lo, lo}, Interval{-kFar, lo}, Interval{lo, kFar}}) {
      const auto in = [&](long long x) { return value.lo <= x && x <= value.hi; };
      for (const int divisor : {1, 2, 7}) {
        expect_tight(dividends(value, point(divisor)), {0, 0},
                     [&](long long x, long long) { return in(floor_quotient(x, divisor)); });
      }
      expect_tight(dividends(value, powers(point(2))), {0, 0},
                   [&](long long x, long long) { return in(floor_quotient(x, 4)); });
      for (const Interval other : {Interval{-2, 3}, Interval{1, 1}, Interval{-9, -8}}) {
        const auto contains = [&](Interval found, auto&& operation) {
          for (long long x = -60; x <= 60; ++x) {
            for (long long y = other.lo; y <= other.hi; ++y) {
              ASSERT_TRUE(!in(operation(x, y)) || (found.lo <= x && x <= found.hi)) << x << ", " << y;
            }
          }
        };
        contains(under_min(value, other), [](long long x, long long y) { return smaller(x, y); });
        contains(under_max(value, other), [](long long x, long long y) { return larger(x, y); });
        contains(under_abs(value, {-60, 60}), [](long long x, long long) { return x < 0 ? -x : x; });
      }
    }
  }
  EXPECT_EQ(under_min({-kFar, 5}, {6, 7}), (Interval{-kFar, 5}));
  EXPECT_EQ(under_max({2, kFar}, {0, 1}), (Interval{2, kFar}));
  EXPECT_EQ(under_abs({-kFar, 5}, {-60, 60}).hi, 5);
  // Divisors that are not known, and counts that move every bit out.
  EXPECT_EQ(dividends({0, 0}, {1, 2}), everything());
  EXPECT_EQ(dividends({0, 0}, point(-3)), everything());
  EXPECT_EQ(dividends({0, 0}, powers(point(32))), everything());
}

// No number that may come up leaves 64 bits.
TEST(KeyRuns, LargeNumbersStayInside) {
  const Interval large = {-(1LL << 61), 1LL << 61};
  for (const Interval sum : {everything(), Interval{0, 0}, Interval{-kFar, -1}}) {
    EXPECT_LE(terms_of_sum(sum, 1, large).lo, terms_of_sum(sum, 1, large).hi);
    EXPECT_EQ(terms_of_sum(sum, 1, large, {0, kLargestI32 + 1}), everything());
  }
  EXPECT_EQ(dividends(everything(), point(0x7FFFFFFF)), everything());
  EXPECT_EQ(dividends({kFar, kFar}, point(0x7FFFFFFF)).lo, (kLargestI32 + 1) * kLargestI32);
  EXPECT_TRUE(keys_within(dividends({kFar, kFar}, point(0x7FFFFFFF)), {0, kLargestI32 - 1}).empty());
}

}  // namespace
}  // namespace heddle::shared
