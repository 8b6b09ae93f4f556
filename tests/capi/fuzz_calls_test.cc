// Random bytes through the entry of the fuzzer for calls, which aborts when something does not hold. The page behind
// each argument ends the program where the library reads or writes past it.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sample.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

TEST(FuzzCalls, AnyArgumentsAreTakenOrRefused) {
  std::mt19937_64 random(heddle::test::sample_seed() + 11);
  const int count = heddle::test::random_cases(heddle::test::takes_all() ? 40000 : 4000);
  for (int round = 0; round < count; ++round) {
    std::vector<std::uint8_t> bytes(400 + random() % 400);
    // Small bytes, for which most arguments are right, and in every other round a few others among them.
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() % (round % 2 == 0 ? 230 : 200));
    for (int i = round % 2 == 0 ? 0 : 40; i > 0; --i)
      bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
    ASSERT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
  }
}

}  // namespace
