// Philox4x32-10 against the known answers of Random123 (kat_vectors), and the draws made from it.
#include "shared/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace heddle::shared {
namespace {

static_assert(philox4x32({{0, 0, 0, 0}}, {{0, 0}}) == PhiloxWords{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
static_assert(philox4x32({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, {{0xffffffff, 0xffffffff}}) ==
              PhiloxWords{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
static_assert(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}}) ==
              PhiloxWords{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});

/// The rank of a matrix of bits.
int rank(std::vector<PhiloxWords> rows) {
  int found = 0;
  for (std::uint32_t bit = 0; bit < 128; ++bit) {
    const auto has = [bit](const PhiloxWords& row) { return ((row.word[bit / 32] >> (bit % 32)) & 1U) != 0; };
    const auto pivot = std::find_if(rows.begin() + found, rows.end(), has);
    if (pivot == rows.end()) continue;
    std::iter_swap(rows.begin() + found, pivot);
    const PhiloxWords own = rows[static_cast<std::size_t>(found)];
    ++found;
    for (auto row = rows.begin() + found; row != rows.end(); ++row) {
      if (!has(*row)) continue;
      for (int i = 0; i < 4; ++i) row->word[i] ^= own.word[i];
    }
  }
  return found;
}

/// The definition of random_uniform, bit by bit.
float defined(std::uint32_t seed, std::uint32_t b, std::uint32_t h, std::uint32_t q_idx, std::uint32_t kv_idx) {
  std::uint32_t column = 0;
  int to = 0;
  for (int bit = 0; bit < 32; ++bit) {
    if (bit == 0 || bit == 3 || bit == 4 || bit == 5) continue;
    column |= ((kv_idx >> bit) & 1U) << to++;
  }
  const PhiloxWords words = philox4x32({{b, h, q_idx, column}}, {{seed, 0x48656464}});
  const std::uint32_t own = words.word[kv_idx / 8 % 4], next = words.word[(kv_idx / 8 + 1) % 4];
  const auto byte = [kv_idx](std::uint32_t word, bool upper) {
    return (word >> ((kv_idx % 2 == 0 ? 0 : 16) + (upper ? 8 : 0))) % 256;
  };
  const bool first = kv_idx / 32 % 2 == 0;
  const std::uint32_t k = byte(own, first) % 128 * 256 + (byte(own, !first) ^ byte(next, !first));
  return static_cast<float>(k / 32768.0);
}

// Callers that redraw them count on these bits: a backward pass, another device, a later version.
TEST(Philox, DrawsStayWhatTheyAre) {
  EXPECT_EQ(random_uniform(0, 0, 0, 0, 0), 20799 * 0x1p-15F);
  EXPECT_EQ(random_uniform(42, 1, 2, 100, 1001), 26042 * 0x1p-15F);
  EXPECT_EQ(random_uniform(0xFFFFFFFBU, 7, 31, 0x7FFFFFFFU, 0xFFFFFFE6U), 22180 * 0x1p-15F);
  EXPECT_EQ(kRandomUniformMax, 1 - 0x1p-15F);
  EXPECT_EQ(random_uniform_value(1), 0x1p-15F);
}

TEST(Philox, RandomUniformIsAsDefined) {
  for (std::uint32_t i = 0; i < 4096; ++i) {
    const std::uint32_t kv_idx = i < 2048 ? i : i * 0x9E3779B9U;
    ASSERT_EQ(random_uniform(i * 7919, i % 3, i % 5, i % 11, kv_idx), defined(i * 7919, i % 3, i % 5, i % 11, kv_idx));
  }
}

// A thread that holds columns 2c, 2c+1, 2c+8, 2c+9, ... of a fragment makes one call for sixteen of them.
TEST(Philox, OneCallServesTheColumnsOfAFragment) {
  for (std::uint32_t base : {0U, 64U, 4096U, 0xFFFFFFC0U}) {
    std::set<std::uint32_t> calls;
    for (std::uint32_t c = 0; c < 4; ++c) {
      const PhiloxWords words = random_uniform_words(1, 2, 3, 4, base + 2 * c);
      calls.insert(words.word[0]);
      for (std::uint32_t pair = 0; pair < 8; ++pair) {
        for (const std::uint32_t e : {0U, 1U}) {
          const std::uint32_t kv_idx = base + 2 * c + 8 * pair + e;
          EXPECT_EQ(random_uniform_words(1, 2, 3, 4, kv_idx), words);
          EXPECT_EQ(random_uniform_pair_of(kv_idx), pair);
          EXPECT_EQ(random_uniform_bits(0x8001'FFFEU, kv_idx), e == 0 ? 0x7FFEU : 1U);
        }
      }
    }
    EXPECT_EQ(calls.size(), 4U);
  }
}

// Calls share their first rounds.
TEST(Philox, CallsOfARowAreThoseOfEachColumn) {
  const RandomUniformRow row = random_uniform_row(0xFFFFFFFBU, 7, 31, 0x7FFFFFFFU);
  for (const std::uint32_t column : {0U, 3U, 257U, 0x0FFFFFFFU}) {
    EXPECT_EQ(random_uniform_words(row, column),
              philox4x32({{7, 31, 0x7FFFFFFFU, column}}, {{0xFFFFFFFBU, kRandomUniformDomain}}));
  }
}

// The fifteen bits of two draws of a call, as sums of the call's: none is a sum of the others.
TEST(Philox, AnyTwoDrawsOfACallAreIndependent) {
  std::array<std::array<PhiloxWords, 15>, 16> bits{};  // of each draw, of each bit the bits of the call whose sum it is
  for (std::uint32_t bit = 0; bit < 128; ++bit) {
    PhiloxWords one{};
    one.word[bit / 32] = 1U << (bit % 32);
    for (std::uint32_t draw = 0; draw < 16; ++draw) {
      const std::uint32_t k = random_uniform_bits(random_uniform_pair(one, draw / 2), draw % 2);
      for (std::uint32_t i = 0; i < 15; ++i) {
        if (((k >> i) & 1U) != 0) bits[draw][i].word[bit / 32] |= one.word[bit / 32];
      }
    }
  }
  for (std::size_t first = 0; first < 16; ++first) {
    for (std::size_t second = 0; second < first; ++second) {
      std::vector<PhiloxWords> rows(bits[first].begin(), bits[first].end());
      rows.insert(rows.end(), bits[second].begin(), bits[second].end());
      EXPECT_EQ(rank(rows), 30) << first << " " << second;
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
  // Neighbours: the other half of a word, the next and the last word of a call, the same with its bytes changed, the
  // next call, the next group of calls.
  constexpr std::array<std::uint32_t, 7> kColumns = {1, 8, 24, 32, 40, 2, 64};
  std::array<int, kBins> bins{}, low_bins{};
  std::array<double, kColumns.size() + 3> products{};
  double sum = 0;
  for (std::uint32_t q = 0; q < kSide; ++q) {
    for (std::uint32_t kv = 0; kv < kSide; ++kv) {
      const double x = random_uniform(42, 1, 2, q, kv);
      ASSERT_GE(x, 0.0);
      ASSERT_LE(x, kRandomUniformMax);
      ++bins[static_cast<std::size_t>(x * kBins)];
      ++low_bins[static_cast<std::size_t>(x * kRandomUniformCount) % kBins];
      sum += x;
      const auto add = [&](std::size_t i, double y) { products[i] += (x - 0.5) * (y - 0.5); };
      for (std::size_t i = 0; i < kColumns.size(); ++i) add(i, random_uniform(42, 1, 2, q, kv ^ kColumns[i]));
      add(kColumns.size(), random_uniform(42, 1, 2, q + 1, kv));
      add(kColumns.size() + 1, random_uniform(42, 1, 3, q, kv));
      add(kColumns.size() + 2, random_uniform(43, 1, 2, q, kv));
    }
  }
  constexpr double kCount = double{kSide} * kSide;
  for (const std::array<int, kBins>& all : {bins, low_bins}) {
    double chi_squared = 0;
    for (const int n : all) chi_squared += (n - kCount / kBins) * (n - kCount / kBins) / (kCount / kBins);
    EXPECT_LT(chi_squared, 63 + 5 * 11.2);  // mean and five standard deviations
    EXPECT_GT(chi_squared, 63 - 5 * 11.2);
  }
  EXPECT_NEAR(sum / kCount, 0.5 - 0x1p-16, 5 * 0.2887 / kSide);
  // Pairs of columns that an exclusive or makes count twice, hence the root of two.
  for (const double product : products) EXPECT_NEAR(product / kCount, 0, 5 * 1.42 / 12.0 / kSide);
}

}  // namespace
}  // namespace heddle::shared
