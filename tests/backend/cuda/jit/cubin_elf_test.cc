// Cubins made by hand. nvrtc_test.cc compares real ones with the compiler's log.
#include "backend/cuda/jit/cubin_elf.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/jit/elf_file.h"

namespace heddle::cuda::jit {
namespace {

std::vector<char> two_kernels() {
  return elf({{".nv.info", attribute(0x2f, 1, 40) + attribute(0x11, 1, 0) + attribute(0x2f, 2, 168) +
                               attribute(0x11, 2, 24) + attribute(0x12, 2, 99)},
              {".nv.info.f", attribute(0x2f, 1, 255)},
              {".nv.shared.f", "", 1024},
              {".nv.shared.g", "", 2048},
              {".nv.shared.reserved.0", "", 4096}});
}

TEST(CubinElf, GivesTheLargestKernel) {
  EXPECT_EQ(resources_of(two_kernels()),
            (Resources{.registers = 168, .spill_bytes = 24, .stack_bytes = 24, .static_shared_bytes = 2048}));
}

TEST(CubinElf, WithoutAStackNothingIsSpilled) {
  EXPECT_EQ(resources_of(elf({{".nv.info", attribute(0x2f, 1, 40) + attribute(0x11, 1, 0)}})),
            (Resources{.registers = 40, .spill_bytes = 0, .stack_bytes = 0, .static_shared_bytes = 0}));
}

TEST(CubinElf, StepsOverOtherAttributes) {
  std::string info;
  add(info, 0x01, 4);                // no value
  add(info, 0x2f03 | 500 << 16, 4);  // a value in place of a length
  EXPECT_EQ(resources_of(elf({{".nv.info", info + attribute(0x2f, 1, 40)}})).registers, 40);
}

TEST(CubinElf, WhatIsNotThereIsNotKnown) {
  EXPECT_EQ(resources_of({}), Resources{});
  EXPECT_EQ(resources_of(std::vector<char>(1000, '\0')), Resources{});
  EXPECT_EQ(resources_of(elf({})), Resources{});
  EXPECT_EQ(resources_of(elf({{".nv.info", attribute(0x2f, 1, 40).substr(0, 8)}})), Resources{}) << "cut short";
  std::vector<char> other = two_kernels();
  other[4] = 1;  // of 32 bits
  EXPECT_EQ(resources_of(other), Resources{});
}

TEST(CubinElf, DamageDoesNoHarm) {
  const std::vector<char> whole = two_kernels();
  std::mt19937 random(5);
  for (int round = 0; round < 50000; ++round) {
    const std::size_t size = round % 3 == 0 ? random() % whole.size() : whole.size();
    const auto bytes = std::make_unique<char[]>(size);  // so that a sanitizer sees a read behind the end
    std::copy_n(whole.begin(), size, bytes.get());
    for (auto changes = random() % 6; changes > 0 && size > 0; --changes) {
      bytes[random() % size] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    resources_of({bytes.get(), size});
  }
}

}  // namespace
}  // namespace heddle::cuda::jit
