// Each matrix instruction, with its operands put where AMD's published layouts say, against plain products.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <sstream>

#include "backend/amd/simulator/half.h"
#include "backend/amd/simulator/matrix_operations.h"
#include "backend/amd/simulator/published_layouts.h"

namespace heddle::amd::simulator {
namespace {

struct Slot {
  int lane = 0, number = 0, bit = 0;
};

void add_bits(const char* bits, int index, Slot& slot) {
  std::istringstream words(bits);
  std::string word;
  for (int bit = 0; words >> word; ++bit) {
    if (!(index >> bit & 1)) continue;
    const int amount = std::atoi(word.c_str() + 1);
    (word[0] == 'l' ? slot.lane : word[0] == 'v' ? slot.number : slot.bit) += amount;
  }
}

Slot published(const PublishedMatrix& matrix, int block, int row, int column) {
  Slot slot;
  add_bits(matrix.block, block, slot);
  add_bits(matrix.row, row, slot);
  add_bits(matrix.column, column, slot);
  return slot;
}

/// A small value, exact in every type, and its bits.
struct Value {
  double value;
  std::uint64_t bits;
};

Value value_of(int small, ElementType type) {
  const auto x = static_cast<float>(small);
  switch (type) {
    case ElementType::kF16:
      return {x, float_to_half(x)};
    case ElementType::kBf16:
      return {x, float_to_bfloat(x)};
    case ElementType::kF32:
      return {x, std::bit_cast<std::uint32_t>(x)};
    case ElementType::kF64:
      return {x, std::bit_cast<std::uint64_t>(static_cast<double>(small))};
    case ElementType::kI8:
      return {x, static_cast<std::uint8_t>(small)};
    case ElementType::kI32:
      return {x, static_cast<std::uint32_t>(small)};
    case ElementType::kFp8:
    case ElementType::kBf8:
      break;
  }
  return {};
}

class MatrixLayout : public ::testing::TestWithParam<std::size_t> {
 protected:
  const MatrixForm& form() const { return matrix_forms()[GetParam()]; }

  /// Any byte is an 8-bit float; the numbers of those are small enough for exact sums.
  Value random_value(ElementType type) {
    if (type != ElementType::kFp8 && type != ElementType::kBf8)
      return value_of(static_cast<int>(random_() % 9) - 4, type);
    const int exponent_bits = type == ElementType::kFp8 ? 4 : 5;
    for (;;) {
      const auto byte = static_cast<std::uint32_t>(random_() & 0xff);
      const double value = byte_to_float(byte, exponent_bits, form().generation == 9);
      if (std::fabs(value) <= 4 && std::fabs(value) >= 0.5) return {value, byte};
    }
  }

  void put(int first, const Slot& slot, std::uint64_t bits, int width) {
    const auto index = static_cast<std::size_t>(first + slot.number);
    Row& row = wave_->v[index];
    if (width == 64) {
      row[slot.lane] = static_cast<std::uint32_t>(bits);
      wave_->v[index + 1][slot.lane] = static_cast<std::uint32_t>(bits >> 32);
    } else {
      row[slot.lane] |= static_cast<std::uint32_t>(bits) << slot.bit;
    }
  }

  std::uint64_t get(int first, const Slot& slot, int width) const {
    const auto index = static_cast<std::size_t>(first + slot.number);
    const std::uint64_t low = wave_->v[index][slot.lane];
    return width == 64 ? low | static_cast<std::uint64_t>(wave_->v[index + 1][slot.lane]) << 32 : low;
  }

  std::mt19937_64 random_{GetParam() + 1};
  std::unique_ptr<Wave> wave_ = std::make_unique<Wave>();
};

TEST_P(MatrixLayout, is_the_published_one) {
  const PublishedLayout* layout = nullptr;
  for (const PublishedLayout& each : kPublishedLayouts) {
    if (each.generation == form().generation && each.name == std::string_view(form().name)) layout = &each;
  }
  ASSERT_TRUE(layout) << "no published layout of " << form().name;
  const MatrixForm& f = form();
  for (Row& row : wave_->v) row.lane.fill(0);
  wave_->undefined.fill({});

  constexpr int kA = 0, kB = 32, kC = 64, kD = 128;
  std::vector<double> a, b, expected;
  const auto fill = [&](const PublishedMatrix& matrix, int first, ElementType type, int rows, int columns, bool twice) {
    std::vector<double> values;
    for (int block = 0; block < f.blocks; ++block) {
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
          const Value value = random_value(type);
          Slot slot = published(matrix, block, row, column);
          put(first, slot, value.bits, bits_of(type));
          slot.lane += 16;
          if (twice) put(first, slot, value.bits, bits_of(type));
          values.push_back(value.value);
        }
      }
    }
    return values;
  };
  a = fill(layout->a, kA, f.a, f.m, f.k, f.generation == 11);
  b = fill(layout->b, kB, f.b, f.k, f.n, f.generation == 11);
  expected = fill(layout->d, kC, f.c, f.m, f.n, false);

  Instruction i;
  i.detail = static_cast<std::int32_t>(GetParam());
  i.to[0] = {.kind = Operand::Kind::kVector, .count = 64, .index = kD};
  i.from[0] = {.kind = Operand::Kind::kVector, .count = 8, .index = kA};
  i.from[1] = {.kind = Operand::Kind::kVector, .count = 8, .index = kB};
  i.from[2] = {.kind = Operand::Kind::kVector, .count = 64, .index = kC};
  i.neg_lo = f.a == ElementType::kI8 ? 3 : 0;  // WMMA: both signed
  Program program;
  program.instructions.push_back(i);
  program.texts.push_back(f.name);
  Group group;
  Memory memory;
  Findings findings;
  Counts counts;
  const Chip chip{.name = "a chip", .generation = f.generation, .lanes = f.generation == 9 ? 64 : 32};
  Execution x{*wave_, group, memory, findings, counts, program, chip, &program.instructions[0]};
  execute_matrix(x, program.instructions[0]);
  EXPECT_EQ(findings.text(), "");

  std::size_t at = 0;
  for (int block = 0; block < f.blocks; ++block) {
    for (int row = 0; row < f.m; ++row) {
      for (int column = 0; column < f.n; ++column, ++at) {
        for (int k = 0; k < f.k; ++k) {
          expected[at] += a[static_cast<std::size_t>((block * f.m + row) * f.k + k)] *
                          b[static_cast<std::size_t>((block * f.k + k) * f.n + column)];
        }
        const std::uint64_t bits = get(kD, published(layout->d, block, row, column), bits_of(f.c));
        const double actual = f.c == ElementType::kF64 ? std::bit_cast<double>(bits)
                              : f.c == ElementType::kI32
                                  ? static_cast<double>(static_cast<std::int32_t>(bits))
                                  : static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
        ASSERT_EQ(actual, expected[at]) << "block " << block << ", row " << row << ", column " << column;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, MatrixLayout, ::testing::Range<std::size_t>(0, matrix_forms().size()),
                         [](const auto& index) {
                           const MatrixForm& form = matrix_forms()[index.param];
                           return fmt::format("{}_gfx{}", form.name, form.generation);
                         });

}  // namespace
}  // namespace heddle::amd::simulator
