// Philox4x32-10 against the known answers of Random123 (kat_vectors), and the draws made from it.
#include "shared/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

namespace heddle::shared {
namespace {

static_assert(philox4x32({{0, 0, 0, 0}}, {{0, 0}}) == PhiloxWords{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
static_assert(philox4x32({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, {{0xffffffff, 0xffffffff}}) ==
              PhiloxWords{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
static_assert(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}}) ==
              PhiloxWords{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});

/// The definition of random_uniform, bit by bit.
float defined(std::uint32_t seed, std::uint32_t b, std::uint32_t h, std::uint32_t q_idx, std::uint32_t kv_idx) {
  std::uint32_t column = 0;
  int to = 0;
  for (int bit = 0; bit < 32; ++bit) {
    if (bit == 0 || bit == 3) continue;
    column |= ((kv_idx >> bit) & 1U) << to++;
  }
  const unsigned word = (kv_idx & 1U) + ((kv_idx & 8U) != 0 ? 2U : 0U);
  const PhiloxWords words = philox4x32({{b, h, q_idx, column}}, {{seed, 0x48656464}});
  return static_cast<float>(static_cast<double>(words.word[word] >> 8) / 16777216.0);
}

TEST(Philox, RandomUniformIsAsDefined) {
  for (std::uint32_t i = 0; i < 4096; ++i) {
    const std::uint32_t kv_idx = i < 2048 ? i : i * 0x9E3779B9U;
    ASSERT_EQ(random_uniform(i * 7919, i % 3, i % 5, i % 11, kv_idx), defined(i * 7919, i % 3, i % 5, i % 11, kv_idx));
  }
}

// A thread that holds columns 2c, 2c+1, 2c+8, 2c+9 of a 16-column fragment makes one call for them.
TEST(Philox, OneCallServesTheColumnsOfAFragment) {
  for (std::uint32_t base : {0U, 16U, 4096U, 0xFFFFFFF0U}) {
    for (std::uint32_t c = 0; c < 4; ++c) {
      const PhiloxWords words = random_uniform_words(1, 2, 3, 4, base + 2 * c);
      std::set<std::uint32_t> used;
      for (const std::uint32_t kv_idx : {base + 2 * c, base + 2 * c + 1, base + 2 * c + 8, base + 2 * c + 9}) {
        EXPECT_EQ(random_uniform_words(1, 2, 3, 4, kv_idx), words);
        used.insert(random_uniform_word_of(kv_idx));
      }
      EXPECT_EQ(used.size(), 4U);
    }
  }
}

TEST(Philox, EveryArgumentCounts) {
  const float x = random_uniform(1, 2, 3, 4, 5);
  EXPECT_NE(random_uniform(2, 2, 3, 4, 5), x);
  EXPECT_NE(random_uniform(1, 3, 3, 4, 5), x);
  EXPECT_NE(random_uniform(1, 2, 4, 4, 5), x);
  EXPECT_NE(random_uniform(1, 2, 3, 5, 5), x);
  EXPECT_NE(random_uniform(1, 2, 3, 4, 6), x);
}

TEST(Philox, DrawsAreUniformAndUncorrelated) {
  constexpr int kSide = 512;
  constexpr int kBins = 64;
  std::array<int, kBins> bins{};
  double sum = 0;
  double along_row = 0;
  double along_column = 0;
  for (std::uint32_t q = 0; q < kSide; ++q) {
    for (std::uint32_t kv = 0; kv < kSide; ++kv) {
      const double x = random_uniform(42, 1, 2, q, kv);
      ASSERT_GE(x, 0.0);
      ASSERT_LT(x, 1.0);
      ++bins[static_cast<std::size_t>(x * kBins)];
      sum += x;
      along_row += (x - 0.5) * (random_uniform(42, 1, 2, q, kv + 1) - 0.5);
      along_column += (x - 0.5) * (random_uniform(42, 1, 2, q + 1, kv) - 0.5);
    }
  }
  constexpr double kCount = double{kSide} * kSide;
  double chi_squared = 0;
  for (const int n : bins) chi_squared += (n - kCount / kBins) * (n - kCount / kBins) / (kCount / kBins);
  EXPECT_LT(chi_squared, 63 + 5 * 11.2);  // mean and five standard deviations
  EXPECT_GT(chi_squared, 63 - 5 * 11.2);
  EXPECT_NEAR(sum / kCount, 0.5, 5 * 0.2887 / kSide);
  EXPECT_NEAR(along_row / kCount, 0, 5 / 12.0 / kSide);
  EXPECT_NEAR(along_column / kCount, 0, 5 / 12.0 / kSide);
}

}  // namespace
}  // namespace heddle::shared
