// The draws of tests that take a part of their cases.
#include "sample.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "scoped_environment.h"

namespace heddle::test {
namespace {

TEST(Sample, SomeSeedDrawsEachCaseOfEachListThatIsDrawn) {
  const ScopedVariable all("HEDDLE_TEST_FULL", nullptr);
  for (const std::uint64_t share : {6, 8}) {
    for (const std::size_t count : {2, 3, 4, 6, 8, 9, 14, 28}) {
      std::set<std::size_t> drawn;
      int lists = 0;
      for (int seed = 0; seed < 4000; ++seed) {
        const ScopedVariable of_run("HEDDLE_TEST_SEED", std::to_string(seed).c_str());
        if (!is_drawn(5, share)) continue;
        ++lists;
        drawn.insert(drawn_case(5, count));
      }
      EXPECT_NEAR(lists, 4000 / static_cast<int>(share), 1) << share;
      EXPECT_EQ(drawn.size(), count) << "one in " << share;
    }
  }
}

TEST(Sample, AllCasesAreDrawnWhereAllAreAskedFor) {
  const ScopedVariable all("HEDDLE_TEST_FULL", "1");
  for (std::uint64_t number = 0; number < 20; ++number) EXPECT_TRUE(is_drawn(number, 6));
}

TEST(Sample, AThirdOfTheKernelsIsDrawnWhereNoneChanged) {
  const ScopedVariable all("HEDDLE_TEST_FULL", nullptr), seed("HEDDLE_TEST_SEED", "5");
  const auto drawn = [](const char* kernels) {
    const ScopedVariable of_run("HEDDLE_TEST_KERNELS", kernels);
    int count = 0;
    for (std::uint64_t number = 0; number < 600; ++number) count += is_kernel_drawn(number, 4) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(drawn(nullptr), 150);
  EXPECT_EQ(drawn("changed"), 150);
  EXPECT_EQ(drawn("unchanged"), 50);
}

TEST(Sample, PartsShareTheCases) {
  std::vector<int> times(100, 0);
  for (const char* text : {"0/3", "1/3", "2/3"}) {
    const ScopedVariable part("HEDDLE_TEST_PART", text);
    for (std::size_t i = 0; i < times.size(); ++i) times[i] += case_part().has(i) ? 1 : 0;
  }
  EXPECT_EQ(times, std::vector<int>(100, 1));
  const ScopedVariable whole("HEDDLE_TEST_PART", nullptr);
  EXPECT_TRUE(case_part().has(0) && case_part().has(7));
}

TEST(Sample, RefusesPartsThatThereAreNot) {
  for (const char* text : {"3/3", "1", "1/0", "a/b", "0/2x", ""}) {
    const ScopedVariable part("HEDDLE_TEST_PART", text);
    EXPECT_THROW(case_part(), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace heddle::test
