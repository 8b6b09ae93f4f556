#include "backend/amd/simulator/matrix_operations.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <vector>

#include "backend/amd/simulator/half.h"

namespace heddle::amd::simulator {
namespace {

/// The cells of a form, looked up once: A by row and k, B by k and column, C by row and column, block after block.
struct Cells {
  std::vector<Cell> a, b, c;
};

const Cells& cells_of(std::size_t index) {
  static std::vector<std::unique_ptr<Cells>> all(matrix_forms().size());
  if (!all[index]) {
    const MatrixForm& form = matrix_forms()[index];
    auto cells = std::make_unique<Cells>();
    for (int block = 0; block < form.blocks; ++block) {
      for (int i = 0; i < form.m; ++i) {
        for (int k = 0; k < form.k; ++k) cells->a.push_back(a_cell(form, block, i, k));
      }
      for (int k = 0; k < form.k; ++k) {
        for (int j = 0; j < form.n; ++j) cells->b.push_back(b_cell(form, block, k, j));
      }
      for (int i = 0; i < form.m; ++i) {
        for (int j = 0; j < form.n; ++j) cells->c.push_back(c_cell(form, block, i, j));
      }
    }
    all[index] = std::move(cells);
  }
  return *all[index];
}

/// gfx90a takes f16 and bf16 denormals for zero, and flushes results.
float flushed(float x, float smallest) { return std::fabs(x) < smallest ? std::copysign(0.0f, x) : x; }

float element(const Wave& wave, int first, const Cell& cell, ElementType type, const Chip& chip, bool is_signed) {
  const std::uint32_t bits = wave.v[static_cast<std::size_t>(first + cell.number)][cell.lane] >> cell.shift;
  switch (type) {
    case ElementType::kF16: {
      const float value = half_to_float(bits & 0xffff);
      return chip.is_gfx90a ? flushed(value, 0x1p-14f) : value;
    }
    case ElementType::kBf16: {
      const float value = bfloat_to_float(bits & 0xffff);
      return chip.is_gfx90a ? flushed(value, 0x1p-126f) : value;
    }
    case ElementType::kI8:
      return is_signed ? static_cast<float>(static_cast<std::int8_t>(bits)) : static_cast<float>(bits & 0xff);
    case ElementType::kFp8:
      return byte_to_float(bits & 0xff, 4, chip.generation == 9);
    case ElementType::kBf8:
      return byte_to_float(bits & 0xff, 5, chip.generation == 9);
    default:
      return std::bit_cast<float>(bits);
  }
}

bool is_undefined(const Wave& wave, int first, const Cell& cell, ElementType type) {
  const auto index = static_cast<std::size_t>(first + cell.number);
  const Undefined& u = wave.undefined[index];
  const int bits = bits_of(type);
  if (bits == 64) return (u.any() | wave.undefined[index + 1].any()) >> cell.lane & 1;
  if (bits == 32) return u.any() >> cell.lane & 1;
  return (cell.shift >= 16 ? u.high : u.low) >> cell.lane & 1;
}

/// Whether a cell of A or B is undefined. gfx11 holds each of their cells twice.
bool operand_undefined(const Wave& wave, int first, const Cell& cell, ElementType type, const MatrixForm& form) {
  if (is_undefined(wave, first, cell, type)) return true;
  if (form.generation != 11) return false;
  return is_undefined(wave, first, {cell.number, static_cast<std::uint8_t>(cell.lane + 16), cell.shift}, type);
}

bool any_undefined(const Execution& x, const Operand& operand) {
  if (operand.kind != Operand::Kind::kVector) return false;
  std::uint64_t any = 0;
  for (int r = 0; r < operand.count; ++r) any |= x.wave.undefined[static_cast<std::size_t>(operand.index + r)].any();
  return (any & x.all_lanes()) != 0;
}

/// gfx11: lanes 16 to 31 of A and B repeat lanes 0 to 15.
void check_repeated_lanes(Execution& x, const Operand& operand, const char* name) {
  for (int r = 0; r < operand.count; ++r) {
    const auto index = static_cast<std::size_t>(operand.index + r);
    const Row& row = x.wave.v[index];
    const std::uint64_t unknown = x.wave.undefined[index].any();
    for (int l = 0; l < 16; ++l) {
      if ((unknown >> l & 1) || (unknown >> (l + 16) & 1) || row[l] == row[l + 16]) continue;
      x.found(Fault::kDuplicate,
              fmt::format("{}: lane {} holds {:#x} in register {} of the operand, lane {} holds {:#x}", name, l, row[l],
                          r, l + 16, row[l + 16]));
      return;
    }
  }
}

/// Which results come from elements that nothing wrote: a row of D from A's row, a column from B's column.
void find_undefined(Execution& x, const Instruction& i, const MatrixForm& form, const Cells& cells,
                    std::vector<bool>& result) {
  result.assign(cells.c.size(), false);
  const auto a_at = [&](int block, int row, int k) {
    return cells.a[static_cast<std::size_t>((block * form.m + row) * form.k + k)];
  };
  const auto b_at = [&](int block, int k, int column) {
    return cells.b[static_cast<std::size_t>((block * form.k + k) * form.n + column)];
  };
  for (int block = 0; block < form.blocks; ++block) {
    std::vector<bool> column_unknown(static_cast<std::size_t>(form.n));
    for (int column = 0; column < form.n; ++column) {
      for (int k = 0; k < form.k; ++k) {
        if (operand_undefined(x.wave, i.from[1].index, b_at(block, k, column), form.b, form)) {
          column_unknown[static_cast<std::size_t>(column)] = true;
        }
      }
    }
    for (int row = 0; row < form.m; ++row) {
      bool row_unknown = false;
      for (int k = 0; k < form.k; ++k) {
        row_unknown = row_unknown || operand_undefined(x.wave, i.from[0].index, a_at(block, row, k), form.a, form);
      }
      for (int column = 0; column < form.n; ++column) {
        const auto at = static_cast<std::size_t>((block * form.m + row) * form.n + column);
        const bool c_unknown =
            i.from[2].kind == Operand::Kind::kVector && is_undefined(x.wave, i.from[2].index, cells.c[at], form.c);
        result[at] = row_unknown || column_unknown[static_cast<std::size_t>(column)] || c_unknown;
      }
    }
  }
}

void mark(Wave& wave, int first, const Cell& cell, bool undefined, int registers) {
  for (int r = 0; r < registers; ++r) {
    Undefined& u = wave.undefined[static_cast<std::size_t>(first + cell.number + r)];
    const std::uint64_t bit = 1ull << cell.lane;
    u.low = undefined ? u.low | bit : u.low & ~bit;
    u.high = undefined ? u.high | bit : u.high & ~bit;
  }
}

void mark_results(Execution& x, const Instruction& i, const MatrixForm& form, const Cells& cells,
                  const std::vector<bool>& unknown) {
  Wave& wave = x.wave;
  const int registers = form.c == ElementType::kF64 ? 2 : 1;
  if (unknown.empty()) {
    for (int r = 0; r < i.to[0].count; ++r) wave.undefined[static_cast<std::size_t>(i.to[0].index + r)] = {};
    return;
  }
  for (std::size_t at = 0; at < cells.c.size(); ++at) mark(wave, i.to[0].index, cells.c[at], unknown[at], registers);
}

/// Products of f32 and narrower: the sum over k in order, each step rounded once. The hardware's order is not
/// documented.
void multiply(const MatrixForm& form, const float* a, const float* b, float* c) {
  for (int block = 0; block < form.blocks; ++block, a += form.m * form.k, b += form.k * form.n, c += form.m * form.n) {
    for (int i = 0; i < form.m; ++i) {
      for (int k = 0; k < form.k; ++k) {
        const float factor = a[i * form.k + k];
        float* row = c + i * form.n;
        const float* from = b + k * form.n;
        for (int j = 0; j < form.n; ++j) row[j] = __builtin_fmaf(factor, from[j], row[j]);
      }
    }
  }
}

constexpr std::size_t kMostElements = 2 * 32 * 32;

void execute_narrow(Execution& x, const Instruction& i, const MatrixForm& form, const Cells& cells) {
  Wave& wave = x.wave;
  std::array<float, kMostElements> a, b, c;
  const bool integer = form.c == ElementType::kI32;
  // iu8 on WMMA: neg_lo says which operand is signed. MFMA's i8 is signed.
  const bool a_signed = form.generation == 9 || (i.neg_lo & 1), b_signed = form.generation == 9 || (i.neg_lo & 2);
  for (std::size_t e = 0; e < cells.a.size(); ++e)
    a[e] = element(wave, i.from[0].index, cells.a[e], form.a, x.chip, a_signed);
  for (std::size_t e = 0; e < cells.b.size(); ++e)
    b[e] = element(wave, i.from[1].index, cells.b[e], form.b, x.chip, b_signed);
  const bool c_is_vector = i.from[2].kind == Operand::Kind::kVector;
  const auto c_constant = static_cast<std::uint32_t>(i.from[2].value);
  std::array<std::uint32_t, kMostElements> addend;
  for (std::size_t e = 0; e < cells.c.size(); ++e) {
    addend[e] = c_is_vector ? wave.v[static_cast<std::size_t>(i.from[2].index + cells.c[e].number)][cells.c[e].lane]
                            : c_constant;
    c[e] =
        integer ? 0.0f : std::bit_cast<float>(addend[e]);  // products of 8-bit integers and their sums are exact in f32
  }
  const bool negate = i.neg_hi >> 2 & 1 || (i.from[2].kind == Operand::Kind::kVector && i.neg_lo >> 2 & 1 && !integer);
  if (negate) {
    for (std::size_t e = 0; e < cells.c.size(); ++e) c[e] = -c[e];
  }
  multiply(form, a.data(), b.data(), c.data());
  const bool flush = x.chip.is_gfx90a && (form.a == ElementType::kF16 || form.a == ElementType::kBf16);
  for (std::size_t e = 0; e < cells.c.size(); ++e) {
    std::uint32_t& to = wave.v[static_cast<std::size_t>(i.to[0].index + cells.c[e].number)][cells.c[e].lane];
    if (integer) {
      to = addend[e] + static_cast<std::uint32_t>(static_cast<std::int32_t>(c[e]));
    } else {
      to = std::bit_cast<std::uint32_t>(flush ? flushed(c[e], 0x1p-126f) : c[e]);
    }
  }
}

double double_at(const Wave& wave, int first, const Cell& cell) {
  const auto index = static_cast<std::size_t>(first + cell.number);
  return std::bit_cast<double>(wave.v[index][cell.lane] | static_cast<std::uint64_t>(wave.v[index + 1][cell.lane])
                                                              << 32);
}

void execute_double(Execution& x, const Instruction& i, const MatrixForm& form, const Cells& cells) {
  Wave& wave = x.wave;
  std::vector<double> result(cells.c.size());
  for (int row = 0; row < form.m; ++row) {
    for (int column = 0; column < form.n; ++column) {
      const auto at = static_cast<std::size_t>(row * form.n + column);
      double sum = i.from[2].kind == Operand::Kind::kVector ? double_at(wave, i.from[2].index, cells.c[at])
                                                            : std::bit_cast<double>(i.from[2].value);
      for (int k = 0; k < form.k; ++k) {
        const double a = double_at(wave, i.from[0].index, cells.a[static_cast<std::size_t>(row * form.k + k)]);
        const double b = double_at(wave, i.from[1].index, cells.b[static_cast<std::size_t>(k * form.n + column)]);
        sum = std::fma(a, b, sum);
      }
      result[at] = sum;
    }
  }
  for (std::size_t at = 0; at < result.size(); ++at) {
    const auto bits = std::bit_cast<std::uint64_t>(result[at]);
    const auto index = static_cast<std::size_t>(i.to[0].index + cells.c[at].number);
    wave.v[index][cells.c[at].lane] = static_cast<std::uint32_t>(bits);
    wave.v[index + 1][cells.c[at].lane] = static_cast<std::uint32_t>(bits >> 32);
  }
}

}  // namespace

void execute_matrix(Execution& x, const Instruction& i) {
  const auto index = static_cast<std::size_t>(i.detail);
  const MatrixForm& form = matrix_forms()[index];
  const Cells& cells = cells_of(index);
  if (form.generation == 11) {
    check_repeated_lanes(x, i.from[0], "A");
    check_repeated_lanes(x, i.from[1], "B");
  }
  std::vector<bool> unknown;
  if (any_undefined(x, i.from[0]) || any_undefined(x, i.from[1]) || any_undefined(x, i.from[2])) {
    find_undefined(x, i, form, cells, unknown);
  }
  if (form.c == ElementType::kF64) {
    execute_double(x, i, form, cells);
  } else {
    execute_narrow(x, i, form, cells);
  }
  mark_results(x, i, form, cells, unknown);
}

}  // namespace heddle::amd::simulator
