// Device memory: bounds, who wrote, addresses of the caller's choice.
#include "backend/amd/simulator/memory.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace heddle::amd::simulator {
namespace {

TEST(MemoryTest, holds_what_was_written) {
  Memory memory;
  const std::uint64_t address = memory.allocate(8, "eight bytes");
  const std::vector<std::uint8_t> values = {1, 2, 3, 4};
  memory.write(address + 4, values);
  std::vector<std::uint8_t> read(4);
  memory.read(address + 4, read);
  EXPECT_EQ(read, values);
  EXPECT_FALSE(memory.find(address, 8)->defined);
  EXPECT_EQ(memory.find(address, 8)->writer[3], Memory::kNobody);
  EXPECT_EQ(memory.find(address, 8)->writer[4], Memory::kHost);
  memory.fill(address, 7, 8);
  EXPECT_TRUE(memory.find(address, 8)->defined);
  memory.forget(address);
  EXPECT_FALSE(memory.find(address, 8)->defined);
}

TEST(MemoryTest, knows_its_bounds) {
  Memory memory;
  const std::uint64_t first = memory.allocate(8, "the first"), second = memory.allocate(8, "the second");
  EXPECT_GT(second, first + 8);
  EXPECT_TRUE(memory.find(first, 8));
  EXPECT_FALSE(memory.find(first, 9));
  EXPECT_FALSE(memory.find(first + 8, 1));
  EXPECT_FALSE(memory.find(first - 1, 1));
  EXPECT_EQ(memory.location_of(first + 10).substr(memory.location_of(first + 10).find("is")),
            "is 2 bytes past the end of the first");
  const std::vector<std::uint8_t> nine(9);
  EXPECT_THROW(memory.write(first, nine), std::out_of_range);
  EXPECT_TRUE(memory.free(first));
  EXPECT_FALSE(memory.free(first));
  EXPECT_FALSE(memory.find(first, 1));
}

TEST(MemoryTest, takes_addresses_of_the_caller) {
  Memory memory;
  memory.allocate_at(0x1000, 16, "a");
  EXPECT_THROW(memory.allocate_at(0x100f, 1, "b"), std::invalid_argument);
  EXPECT_THROW(memory.allocate_at(0xff0, 0x11, "b"), std::invalid_argument);
  memory.allocate_at(0x1010, 4, "b");
  memory.allocate_at(0xff0, 0x10, "c");
  EXPECT_EQ(memory.find(0x1010, 4)->name, "b");
}

}  // namespace
}  // namespace heddle::amd::simulator
