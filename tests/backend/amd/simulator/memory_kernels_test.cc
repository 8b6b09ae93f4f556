// Kernels that move data, against the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "backend/amd/simulator/simulated.h"

namespace heddle::amd::simulator {
namespace {

using MemoryKernels = OnEveryChip;
INSTANTIATE_TEST_SUITE_P(, MemoryKernels, ::testing::ValuesIn(chips()), [](const auto& chip) { return chip.param; });

TEST_P(MemoryKernels, copy) {
  Simulated gpu("memory", GetParam());
  const std::vector<float> in = random_floats(1000);
  const std::uint64_t from = gpu.input(in), to = gpu.output<float>(1000);
  const Report report = gpu.run("copy", {4, 1, 1}, 256, Arguments().add(to).add(from).add(1000u));
  EXPECT_EQ(gpu.values<float>(to, 1000), in);
  EXPECT_EQ(report.global_bytes_loaded, 4000u);
  EXPECT_EQ(report.global_bytes_stored, 4000u);
  EXPECT_EQ(report.waves, 4u * 256 / static_cast<unsigned>(gpu.lanes()));
}

TEST_P(MemoryKernels, copy_vectors) {
  Simulated gpu("memory", GetParam());
  const std::vector<float> in = random_floats(4 * 500);
  const std::uint64_t from = gpu.input(in), to = gpu.output<float>(in.size());
  gpu.run("copy_vectors", {2, 1, 1}, 128, Arguments().add(to).add(from).add(500u));
  std::vector<float> expected = in;
  for (float& value : expected) value *= 2;
  EXPECT_EQ(gpu.values<float>(to, in.size()), expected);
}

TEST_P(MemoryKernels, elements_of_8_16_and_64_bits) {
  Simulated gpu("memory", GetParam());
  const auto in8 = random_integers<std::uint8_t>(100, 1);
  const auto in16 = random_integers<std::int16_t>(100, 2);
  const auto in_s8 = random_integers<std::int8_t>(100, 3);
  const std::uint64_t out8 = gpu.output<std::uint8_t>(100), out16 = gpu.output<std::uint16_t>(100),
                      out64 = gpu.output<std::uint64_t>(100);
  gpu.run("narrow", {2, 1, 1}, 64,
          Arguments()
              .add(out8)
              .add(out16)
              .add(out64)
              .add(gpu.input(in8))
              .add(gpu.input(in16))
              .add(gpu.input(in_s8))
              .add(100u));
  std::vector<std::uint8_t> expected8;
  std::vector<std::uint16_t> expected16;
  std::vector<std::uint64_t> expected64;
  for (std::size_t i = 0; i < 100; ++i) {
    expected8.push_back(static_cast<std::uint8_t>(in8[i] * 3 + 1));
    expected16.push_back(static_cast<std::uint16_t>(in16[i] - in_s8[i]));
    expected64.push_back(in8[i] * 0x100000001ull + static_cast<std::uint64_t>(static_cast<std::int64_t>(in16[i])));
  }
  EXPECT_EQ(gpu.values<std::uint8_t>(out8, 100), expected8);
  EXPECT_EQ(gpu.values<std::uint16_t>(out16, 100), expected16);
  EXPECT_EQ(gpu.values<std::uint64_t>(out64, 100), expected64);
}

TEST_P(MemoryKernels, transpose_through_lds) {
  Simulated gpu("memory", GetParam());
  const std::uint32_t width = 70, height = 45;
  const std::vector<float> in = random_floats(width * height);
  const std::uint64_t from = gpu.input(in), to = gpu.output<float>(in.size());
  const Report report = gpu.run("transpose", {3, 2, 1}, 256, Arguments().add(to).add(from).add(width).add(height));
  std::vector<float> expected(in.size());
  for (std::uint32_t y = 0; y < height; ++y) {
    for (std::uint32_t x = 0; x < width; ++x) expected[x * height + y] = in[y * width + x];
  }
  EXPECT_EQ(gpu.values<float>(to, in.size()), expected);
  EXPECT_EQ(report.lds.conflicts, 0u);  // rows of 33 words
  EXPECT_GT(report.lds.all, 0u);
}

TEST_P(MemoryKernels, transpose_of_halves) {
  Simulated gpu("memory", GetParam());
  const auto in = random_integers<std::uint16_t>(64 * 64);
  const std::uint64_t from = gpu.input(in), to = gpu.output<std::uint16_t>(in.size());
  gpu.run("transpose_halves", {1, 1, 1}, 64, Arguments().add(to).add(from));
  std::vector<std::uint16_t> expected(in.size());
  for (std::size_t y = 0; y < 64; ++y) {
    for (std::size_t x = 0; x < 64; ++x) expected[x * 64 + y] = in[y * 64 + x];
  }
  EXPECT_EQ(gpu.values<std::uint16_t>(to, in.size()), expected);
}

TEST_P(MemoryKernels, reduction_with_barriers) {
  Simulated gpu("memory", GetParam());
  std::vector<float> in(3000);
  std::iota(in.begin(), in.end(), 1.0f);
  const std::uint64_t from = gpu.input(in), to = gpu.output<float>(3);
  const Report report = gpu.run("reduce", {3, 1, 1}, 256, Arguments().add(to).add(from).add(3000u));
  std::vector<float> expected(3);
  for (std::size_t i = 0; i < in.size(); ++i) expected[i / 1024] += in[i];
  EXPECT_EQ(gpu.values<float>(to, 3), expected);
  EXPECT_GT(report.of(Class::kBarrier).instructions, 0u);
}

TEST_P(MemoryKernels, array_in_scratch) {
  Simulated gpu("memory", GetParam());
  const std::uint32_t n = 20;
  const auto in = random_integers<std::uint32_t>(64 * n);
  const std::uint64_t from = gpu.input(in), to = gpu.output<std::uint32_t>(64 * 16);
  gpu.run("scratch_array", {1, 1, 1}, 64, Arguments().add(to).add(from).add(n));
  std::vector<std::uint32_t> expected(64 * 16);
  for (std::uint32_t t = 0; t < 64; ++t) {
    for (std::uint32_t i = 0; i < n; ++i) expected[t * 16 + in[t * n + i] % 16] += i + 1;
  }
  EXPECT_EQ(gpu.values<std::uint32_t>(to, expected.size()), expected);
}

TEST_P(MemoryKernels, table_in_the_code_object) {
  Simulated gpu("memory", GetParam());
  const std::vector<std::uint32_t> primes = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};
  const auto in = random_integers<std::uint32_t>(64);
  const std::uint64_t from = gpu.input(in), to = gpu.output<std::uint32_t>(64);
  gpu.run("table", {1, 1, 1}, 64, Arguments().add(to).add(from));
  const auto out = gpu.values<std::uint32_t>(to, 64);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], primes[in[i] % 16]);
}

TEST_P(MemoryKernels, atomics) {
  Simulated gpu("memory", GetParam());
  const std::uint32_t groups = 3;
  auto in = random_integers<std::uint32_t>(groups * 64);
  for (std::uint32_t& value : in) value &= 0xffff;
  const std::uint64_t from = gpu.input(in), counters = gpu.input(std::vector<std::uint32_t>(8 + in.size())),
                      sum = gpu.input(std::vector<float>(1));
  gpu.run("atomics", {groups, 1, 1}, 64, Arguments().add(counters).add(sum).add(from));
  std::vector<std::uint32_t> expected(6);
  float expected_sum = 0;
  for (const std::uint32_t value : in) {
    expected[value % 4] += value;
    expected[4] = std::max(expected[4], value);
    expected[5] |= 1u << (value % 32);
    expected_sum += static_cast<float>(value % 8);
  }
  const auto out = gpu.values<std::uint32_t>(counters, 8 + in.size());
  EXPECT_EQ(std::vector<std::uint32_t>(out.begin(), out.begin() + 6), expected);
  EXPECT_EQ(out[6], in.size());
  EXPECT_TRUE(std::find(in.begin(), in.end(), out[7] - 1) != in.end());
  std::vector<std::uint32_t> listed(out.begin() + 8, out.end());
  std::sort(listed.begin(), listed.end());
  std::sort(in.begin(), in.end());
  EXPECT_EQ(listed, in);  // each took a place of its own
  EXPECT_EQ(gpu.values<float>(sum, 1)[0], expected_sum);
}

TEST_P(MemoryKernels, last_workgroup_adds_what_all_left) {
  Simulated gpu("memory", GetParam());
  const std::uint32_t groups = 5;
  const std::vector<float> in = random_floats(groups * 64);
  const std::uint64_t parts = gpu.output<float>(groups * 64), arrived = gpu.input(std::vector<std::uint32_t>(1)),
                      to = gpu.output<float>(64);
  gpu.run("last_block", {groups, 1, 1}, 64, Arguments().add(to).add(parts).add(arrived).add(gpu.input(in)).add(groups));
  const auto out = gpu.values<float>(to, 64);
  for (std::size_t t = 0; t < 64; ++t) {
    float sum = 0;
    for (std::size_t g = 0; g < groups; ++g) sum += in[g * 64 + t] + 1.0f;
    EXPECT_EQ(out[t], sum);
  }
}

TEST_P(MemoryKernels, strides_of_64_bits_in_structs) {
  struct Strides {
    std::int64_t row, column;
    std::uint16_t scale;
  };
  Simulated gpu("memory", GetParam());
  const std::uint32_t rows = 3, columns = 128;
  const std::vector<float> in = random_floats(rows * columns);
  const std::uint64_t from = gpu.input(in), to = gpu.output<float>(rows * columns);
  gpu.run("strided", {2, rows, 1}, 64,
          Arguments().add(to).add(from).add(Strides{columns, 1, 3}).add(Strides{1, rows, 0}).add(rows));
  const auto out = gpu.values<float>(to, in.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) EXPECT_EQ(out[r + c * rows], in[(rows - 1 - r) * columns + c] * 3);
  }
}

}  // namespace
}  // namespace heddle::amd::simulator
