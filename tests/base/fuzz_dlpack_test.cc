// Random bytes through the entry of the fuzzer for DLPack capsules, which aborts when something does not hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sample.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

TEST(FuzzDlpack, CapsulesAreTakenOrStayTheCallers) {
  std::mt19937_64 random(heddle::test::sample_seed() + 5);
  for (int round = heddle::test::random_cases(20000); round > 0; --round) {
    std::vector<std::uint8_t> bytes(random() % 80);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(round % 2 == 0 ? random() : random() % 60);
    ASSERT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
  }
}

}  // namespace
