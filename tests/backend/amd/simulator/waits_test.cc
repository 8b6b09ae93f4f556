// The counters: what a wait for a number of operations lets be used.
#include "backend/amd/simulator/waits.h"

#include <gtest/gtest.h>

#include "backend/amd/simulator/assembly_line.h"
#include "backend/amd/simulator/wait_rules.h"

namespace heddle::amd::simulator {
namespace {

RegisterRange registers(int first, int count = 1) {
  return {static_cast<std::int16_t>(first), static_cast<std::int16_t>(count), true};
}

class WaitsTest : public ::testing::Test {
 protected:
  WaitsTest() { waits_.reset(); }
  void load(Counter counter, int first, int count = 1, bool in_order = true) {
    const RegisterRange range = registers(first, count);
    waits_.issue(counter, in_order, {&range, 1});
  }
  bool is_pending(int first, int count = 1) const { return waits_.pending(registers(first, count)) >= 0; }
  Waits waits_;
};

TEST_F(WaitsTest, operations_in_order_come_back_in_order) {
  load(Counter::kLoads, 0, 4);
  load(Counter::kLoads, 4, 4);
  load(Counter::kLoads, 8);
  EXPECT_TRUE(is_pending(3, 2));
  EXPECT_EQ(waits_.pending(registers(2, 3)), 2);
  waits_.wait(Counter::kLoads, 1);
  EXPECT_FALSE(is_pending(0, 8));
  EXPECT_TRUE(is_pending(8));
  waits_.wait(Counter::kStores, 0);
  EXPECT_TRUE(is_pending(8));
  waits_.wait(Counter::kLoads, 0);
  EXPECT_FALSE(waits_.any());
}

// Scalar loads come back in any order: only a wait for none lets their registers be used.
TEST_F(WaitsTest, operations_in_any_order) {
  load(Counter::kLds, 512, 2, false);
  load(Counter::kLds, 514, 2, false);
  waits_.wait(Counter::kLds, 1);
  EXPECT_TRUE(is_pending(512));
  EXPECT_TRUE(is_pending(514));
  waits_.wait(Counter::kLds, 0);
  EXPECT_FALSE(waits_.any());
}

// gfx9 and gfx11 count scalar loads and LDS together.
TEST_F(WaitsTest, both_kinds_in_one_counter) {
  load(Counter::kLds, 0);
  load(Counter::kLds, 512, 1, false);
  load(Counter::kLds, 1);
  waits_.wait(Counter::kLds, 1);  // two are back: the scalar load and one of LDS, or both of LDS
  EXPECT_FALSE(is_pending(0));
  EXPECT_TRUE(is_pending(1));
  EXPECT_TRUE(is_pending(512));
}

TEST_F(WaitsTest, a_register_that_is_filled_twice_waits_for_the_second) {
  load(Counter::kLoads, 0);
  load(Counter::kLoads, 0);
  EXPECT_EQ(waits_.pending_beside(registers(0), Counter::kLoads), -1);
  EXPECT_EQ(waits_.pending_beside(registers(0), Counter::kLds), 0);
  waits_.wait(Counter::kLoads, 1);
  EXPECT_TRUE(is_pending(0));
  waits_.wait(Counter::kLoads, 0);
  EXPECT_FALSE(waits_.any());
}

TEST(WaitText, names_counters) {
  const auto left = [](const char* text, Counter counter) {
    return static_cast<int>(wait_limits(parse_instruction(text)) >> (8 * static_cast<int>(counter)) & 0xff);
  };
  EXPECT_EQ(left("s_waitcnt vmcnt(3) lgkmcnt(0)", Counter::kLoads), 3);
  EXPECT_EQ(left("s_waitcnt vmcnt(3) lgkmcnt(0)", Counter::kLds), 0);
  EXPECT_EQ(left("s_waitcnt vmcnt(3)", Counter::kLds), 255);
  EXPECT_EQ(left("s_waitcnt expcnt(0)", Counter::kLoads), 255);
  EXPECT_EQ(left("s_waitcnt_vscnt null, 0x2", Counter::kStores), 2);
  EXPECT_EQ(left("s_wait_kmcnt 0x0", Counter::kScalar), 0);
  EXPECT_EQ(left("s_wait_loadcnt_dscnt 0x305", Counter::kLoads), 3);
  EXPECT_EQ(left("s_wait_loadcnt_dscnt 0x305", Counter::kLds), 5);
  EXPECT_EQ(left("s_wait_storecnt_dscnt 0x100", Counter::kStores), 1);
  EXPECT_THROW(left("s_waitcnt what(1)", Counter::kLoads), std::runtime_error);
}

}  // namespace
}  // namespace heddle::amd::simulator
