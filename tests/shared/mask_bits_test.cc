// The words of masks as bits, against what each thread's rows and columns are.
#include "shared/mask_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "families/forward_sm90/forward_sm90_costs.h"

namespace heddle::test {
namespace {

TEST(MaskBits, AreInTheOrderOfColumns) {
  for (int bit = 0; bit < 32; ++bit) {
    const int column = shared::mask_column(bit);
    EXPECT_EQ(shared::mask_bit(column / 8, column % 8), bit);
    if (bit > 0) {
      EXPECT_GT(column, shared::mask_column(bit - 1));
    }
  }
}

TEST(MaskBits, AreThoseOfABlock) {
  EXPECT_EQ(shared::mask_bits_of(16), 0xFU);
  EXPECT_EQ(shared::mask_bits_of(112), 0x0FFFFFFFU);
  EXPECT_EQ(shared::mask_bits_of(128), ~0U);
}

/// attends(row, column) of a warp's 16 rows and a block's keys; words(lane) are a thread's.
template <class Words, class Attends>
void expect_words(int keys, Words&& words, Attends&& attends) {
  for (int lane = 0; lane < 32; ++lane) {
    const shared::MaskWords own = words(lane);
    for (int bit = 0; bit < keys / 4; ++bit) {
      const int column = shared::mask_column(bit) + 2 * (lane % 4);
      for (int r = 0; r < 2; ++r) {
        EXPECT_EQ(own.row[r] >> bit & 1, attends(lane / 4 + 8 * r, column) ? 1U : 0U)
            << "lane " << lane << " column " << column << " row " << r;
      }
    }
  }
}

TEST(MaskBits, AreThoseOfARangeOfDistances) {
  for (int most = -160; most <= 160; most += 1) {
    for (const int least : {-1 << 30, -131, -64, most - 20, most - 1, most, most + 1}) {
      SCOPED_TRACE(testing::Message() << least << " to " << most);
      expect_words(
          128, [&](int lane) { return shared::words_of_range(least, most, 2 * (lane % 4) - lane / 4); },
          [&](int row, int column) { return least <= column - row && column - row <= most; });
      if (testing::Test::HasFailure()) return;
    }
  }
  const auto from_here = [](int lane) { return shared::words_of_range(-3, 1 << 30, 2 * (lane % 4) - lane / 4); };
  expect_words(128, from_here, [](int row, int column) { return column - row >= -3; });
}

/// Distances whose bits are drawn, as a warp's votes make words of them.
void expect_words_of_distances(int keys) {
  SCOPED_TRACE(keys);
  std::mt19937 random(static_cast<unsigned>(keys));
  for (int draw = 0; draw < 50; ++draw) {
    std::array<bool, 192> distances{};
    for (bool& bit : distances) bit = random() % 2 != 0;
    const auto number = [&](int n) { return distances.at(static_cast<std::size_t>(n)) ? 1U : 0U; };
    unsigned past = 0;
    for (int bit = 0; bit < 32; ++bit) past |= number(shared::kPastDistances + bit) << bit;
    expect_words(
        keys,
        [&](int lane) {
          unsigned word = 0;
          for (int bit = 0; bit < 32; ++bit) {
            word |= number(shared::distance_number(shared::distance_word(lane), bit)) << bit;
          }
          return shared::words_of_distances(word, shared::has_past_distances(keys) ? past : 0, lane);
        },
        [&](int row, int column) { return number(15 + column - row) != 0; });
  }
}

TEST(MaskBits, AreThoseOfEachThreadsDistances) {
  for (const int keys : {16, 32, 64, 80, 96, 112, 128}) expect_words_of_distances(keys);
}

TEST(MaskBits, AreThoseOfKeys) {
  std::mt19937 random(1);
  for (int draw = 0; draw < 50; ++draw) {
    std::array<unsigned, 4> votes{};
    for (unsigned& word : votes) word = static_cast<unsigned>(random());
    expect_words(
        128,
        [&](int lane) {
          const std::size_t even = lane % 2 == 0 ? 0 : 2;
          const unsigned word = shared::word_of_keys(votes[even], votes[even + 1], lane);
          return shared::MaskWords{{word, word}};
        },
        [&](int, int column) { return (votes.at(static_cast<std::size_t>(column % 4)) >> column / 4 & 1) != 0; });
  }
}

TEST(MaskBits, KnowWhereTwoColumnsRepeat) {
  for (unsigned two = 0; two < 4; ++two) EXPECT_TRUE(shared::repeats_two<128>(two * 0x55555555U));
  EXPECT_FALSE(shared::repeats_two<128>(0x55555551U));
  EXPECT_FALSE(shared::repeats_two<128>(0x15555555U));
  EXPECT_TRUE(shared::repeats_two<112>(0xF5555555U)) << "bits past the block's keys say nothing";
}

TEST(MaskBits, SufficeForEveryKernel) {
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    EXPECT_LE(kernel.kv_block, 128) << "a word has bits for so many";
    EXPECT_EQ(kernel.kv_block % 16, 0) << "what repeats does so by blocks";
  }
}

TEST(MaskBits, TakesWordsAcrossTwo) {
  EXPECT_EQ(shared::funnel(0x89ABCDEF, 0x01234567, 0), 0x89ABCDEFU);
  EXPECT_EQ(shared::funnel(0x89ABCDEF, 0x01234567, 8), 0x6789ABCDU);
  EXPECT_EQ(shared::funnel(0x89ABCDEF, 0x01234567, 31), 0x02468ACFU);
}

}  // namespace
}  // namespace heddle::test
