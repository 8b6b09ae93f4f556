// The words of masks as bits, against what each thread's rows and columns are.
#include "shared/mask_bits.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>

#include "plan/families/forward_sm90_costs.h"

namespace heddle::test {
namespace {

TEST(MaskBits, HaveEachColumnOnce) {
  std::set<int> columns;
  for (int j = 0; j < 16; ++j) {
    for (int e = 0; e < 2; ++e) {
      EXPECT_EQ(shared::mask_column(shared::mask_bit(j, e)), 8 * j + e);
      columns.insert(shared::mask_bit(j, e));
    }
  }
  EXPECT_EQ(columns.size(), 32U);
  EXPECT_EQ(*columns.begin(), 0);
  EXPECT_EQ(*columns.rbegin(), 31);
}

/// A warp's rows against a block of keys, for distances that are drawn.
template <int kKeys>
void expect_words() {
  SCOPED_TRACE(kKeys);
  std::mt19937 random(kKeys);
  for (int draw = 0; draw < 50; ++draw) {
    unsigned distances[shared::distance_bit_words(kKeys)];
    for (unsigned& word : distances) word = static_cast<unsigned>(random());
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const shared::MaskWords words = shared::words_of_distances<kKeys>(distances, lane);
      for (int j = 0; j < kKeys / 8; ++j) {
        for (int e = 0; e < 2; ++e) {
          const int bit = shared::mask_bit(j, e), column = 8 * j + 2 * (lane % 4) + e;
          all |= 1U << bit;
          for (int r = 0; r < 2; ++r) {
            const int n = 15 + column - (lane / 4 + 8 * r);
            EXPECT_EQ(words.row[r] >> bit & 1, distances[n / 32] >> n % 32 & 1) << lane << ' ' << column << ' ' << r;
          }
        }
      }
    }
    EXPECT_EQ(shared::mask_bits_of(kKeys), all);
  }
}

TEST(MaskBits, AreThoseOfEachThreadsDistances) {
  expect_words<16>();
  expect_words<32>();
  expect_words<64>();
  expect_words<80>();
  expect_words<96>();
  expect_words<112>();
  expect_words<128>();
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
