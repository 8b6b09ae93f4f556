// LDS: who meets whom between which barriers, what is undefined, what banks cost.
#include "backend/amd/simulator/lds.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace heddle::amd::simulator {
namespace {

constexpr Toucher kFirst{0, 1, 1}, kSecond{1, 1, 1}, kFirstLater{0, 2, 2}, kSecondLater{1, 2, 2};

class LdsTest : public ::testing::Test {
 protected:
  LdsTest() { lds_.reset(64); }
  bool load(const Toucher& by, std::uint32_t address, std::uint32_t size = 4) {
    std::uint8_t bytes[16];
    return lds_.load(by, address, size, bytes);
  }
  bool store(const Toucher& by, std::uint32_t address, std::uint32_t size = 4) {
    const std::uint8_t bytes[16] = {};
    return lds_.store(by, address, size, bytes);
  }
  Lds lds_;
};

TEST_F(LdsTest, a_write_and_another_waves_access_race) {
  EXPECT_TRUE(store(kFirst, 0));
  EXPECT_TRUE(load(kFirst, 0)) << "its own";
  EXPECT_FALSE(load(kSecond, 0));
  EXPECT_FALSE(store(kSecond, 2, 2)) << "half of the word";
  EXPECT_TRUE(store(kSecond, 4)) << "the next word";
}

TEST_F(LdsTest, a_read_and_another_waves_write_race) {
  EXPECT_TRUE(load(kFirst, 0));
  EXPECT_TRUE(load(kSecond, 0)) << "two readers";
  EXPECT_FALSE(store(kFirst, 0)) << "the other has read it, too";
  EXPECT_TRUE(load(kFirst, 8, 8));
  EXPECT_TRUE(store(kFirst, 8, 8)) << "read by nobody else";
}

TEST_F(LdsTest, a_barrier_separates) {
  EXPECT_TRUE(store(kFirst, 0));
  EXPECT_TRUE(load(kSecondLater, 0));
  EXPECT_FALSE(store(kFirstLater, 0));
}

// Between the signal and the wait of a split barrier: an access may meet those of both sides.
TEST_F(LdsTest, a_split_barrier) {
  const Toucher between{0, 1, 2};
  EXPECT_TRUE(store(between, 0));
  EXPECT_FALSE(load(kSecond, 0)) << "before its signal";
  EXPECT_TRUE(store(between, 4));
  EXPECT_FALSE(load(kSecondLater, 4)) << "after its wait";
  EXPECT_TRUE(store(kSecond, 8));
  EXPECT_FALSE(load(between, 8));
}

TEST_F(LdsTest, a_write_that_was_not_waited_for_counts_after_the_barrier) {
  EXPECT_TRUE(store(kFirst, 0));
  lds_.delay({0, 1, 2}, 0, 4, true);
  EXPECT_FALSE(load(kSecondLater, 0));
}

TEST_F(LdsTest, atomics_of_several_waves_do_not_race) {
  EXPECT_TRUE(lds_.touch_atomically(kFirst, 0, 4));
  EXPECT_TRUE(lds_.touch_atomically(kSecond, 0, 4));
  EXPECT_FALSE(load(kFirst, 0)) << "the other's atomic may come before or after";
  EXPECT_TRUE(load(kFirstLater, 0));
}

TEST_F(LdsTest, bytes_are_undefined_until_they_are_written) {
  EXPECT_EQ(lds_.undefined(0, 4), 15u);
  store(kFirst, 1, 1);
  EXPECT_EQ(lds_.undefined(0, 4), 13u);
  lds_.set_undefined(1, 1, 1);
  EXPECT_EQ(lds_.undefined(0, 4), 15u);
}

BankCycles cycles(std::uint32_t stride, std::uint32_t size, int generation = 11, std::uint32_t lanes = 32) {
  std::vector<std::uint32_t> addresses(lanes);
  for (std::uint32_t l = 0; l < lanes; ++l) addresses[l] = l * stride;
  return bank_cycles(addresses, ~0ull, size, generation);
}

TEST(BankCyclesTest, by_stride) {
  EXPECT_EQ(cycles(4, 4).all, 1u);
  EXPECT_EQ(cycles(0, 4).all, 1u) << "one dword for all";
  EXPECT_EQ(cycles(8, 4).all, 2u);
  EXPECT_EQ(cycles(8, 4).conflicts, 1u);
  EXPECT_EQ(cycles(128, 4).all, 32u);
  EXPECT_EQ(cycles(132, 4).all, 1u) << "33 dwords: each lane its own bank";
  EXPECT_EQ(cycles(16, 16).all, 4u);
  EXPECT_EQ(cycles(16, 16).conflicts, 0u);
  EXPECT_EQ(cycles(128, 16).all, 32u) << "rows of 64 halves";
  EXPECT_EQ(cycles(144, 16).all, 4u) << "rows of 72 halves: an odd number of 16 bytes";
  EXPECT_EQ(cycles(8, 8).all, 2u);
}

TEST(BankCyclesTest, lanes_that_exec_leaves_out_cost_nothing) {
  std::vector<std::uint32_t> addresses(32);
  std::iota(addresses.begin(), addresses.end(), 0u);
  EXPECT_EQ(bank_cycles(addresses, 0, 4, 11).all, 0u);
  for (std::uint32_t l = 0; l < 32; ++l) addresses[l] = l * 128;
  EXPECT_EQ(bank_cycles(addresses, 3, 4, 11).all, 2u);
}

// gfx9 serves lanes 0 to 3, 12 to 15 and 20 to 27 first: of 8 consecutive rows in lanes 0 to 7, half at a time.
TEST(BankCyclesTest, gfx9_serves_16_byte_reads_in_an_order_of_its_own) {
  std::vector<std::uint32_t> addresses(64);
  for (std::uint32_t l = 0; l < 64; ++l) addresses[l] = l % 8 < 4 ? l % 4 * 16 : 64 + l % 4 * 16;
  EXPECT_EQ(bank_cycles(addresses, ~0ull, 16, 11).conflicts, 0u);
  EXPECT_EQ(bank_cycles(addresses, 0xf00f, 16, 9).all, 1u) << "lanes 0 to 3 and 12 to 15 together";
  EXPECT_EQ(bank_cycles(addresses, 0x00ff, 16, 9).all, 2u) << "lanes 0 to 3 and 4 to 7 apart";
}

}  // namespace
}  // namespace heddle::amd::simulator
