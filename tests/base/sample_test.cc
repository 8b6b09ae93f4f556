// The draws of tests that take a part of their cases.
#include "sample.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

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

}  // namespace
}  // namespace heddle::test
