// Random bytes through the entry of the fuzzer for the plan cache, which aborts when something does not hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sample.h"
#include "scoped_environment.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

TEST(FuzzPlanCache, AKeptPlanComputesAsOneOfItsOwn) {
  const heddle::ScopedVariable restored("HEDDLE_PLAN_CACHE_BYTES", nullptr);
  std::mt19937_64 random(heddle::test::sample_seed() + 9);
  for (int round = heddle::test::random_cases(60); round > 0; --round) {
    std::vector<std::uint8_t> bytes(150);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    ASSERT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
  }
}

}  // namespace
