// Cubins made by hand. nvrtc_test.cc compares real ones with the compiler's log.
#include "backend/cuda/jit/cubin_elf.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace heddle::cuda::jit {
namespace {

void add(std::string& bytes, std::uint64_t value, std::size_t size) {
  bytes.append(reinterpret_cast<const char*>(&value), size);
}

std::string attribute(std::uint8_t number, std::uint32_t symbol, std::uint32_t value) {
  std::string bytes;
  add(bytes, 4, 1);
  add(bytes, number, 1);
  add(bytes, 8, 2);
  add(bytes, symbol, 4);
  add(bytes, value, 4);
  return bytes;
}

struct Section {
  std::string name, bytes;
  std::uint64_t size_without_bytes = 0;  // of a section that the file holds no bytes of
};

std::vector<char> elf(std::vector<Section> sections) {
  constexpr std::uint64_t kHeader = 64;
  sections.insert(sections.begin(), Section{});
  std::string names(1, '\0'), bodies, headers;
  std::vector<std::uint64_t> name_offsets;
  sections.push_back({".shstrtab", ""});
  for (const Section& section : sections) {
    name_offsets.push_back(names.size());
    names += section.name + '\0';
  }
  sections.back().bytes = names;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const Section& section = sections[i];
    const bool bare = section.size_without_bytes > 0;
    add(headers, name_offsets[i], 4);
    add(headers, bare ? 8 : 1, 4);
    add(headers, 0, 8);
    add(headers, 0, 8);
    add(headers, kHeader + bodies.size(), 8);
    add(headers, bare ? section.size_without_bytes : section.bytes.size(), 8);
    headers.append(24, '\0');
    bodies += section.bytes;
  }
  std::string file = "\177ELF\2\1";
  file.resize(40);
  add(file, kHeader + bodies.size(), 8);
  file.resize(58);
  add(file, 64, 2);
  add(file, sections.size(), 2);
  add(file, sections.size() - 1, 2);
  file += bodies + headers;
  return {file.begin(), file.end()};
}

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
