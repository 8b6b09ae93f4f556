// Random bytes through the fuzzer's entry, which aborts when something does not hold.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sample.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

TEST(FuzzStructs, AnyFieldsAreTakenOrRefused) {
  std::mt19937_64 random(heddle::test::sample_seed() + 7);
  const int count = heddle::test::random_cases(4000);
  for (int round = 0; round < count; ++round) {
    std::vector<std::uint8_t> bytes(random() % 400);
    // Every other round has small bytes, for which more of the structs are right.
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(round % 2 == 0 ? random() : random() % 60);
    ASSERT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
  }
}

}  // namespace
