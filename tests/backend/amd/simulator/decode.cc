#include "backend/amd/simulator/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "backend/amd/simulator/decode_memory.h"
#include "backend/amd/simulator/matrix_operations.h"
#include "backend/amd/simulator/mnemonics.h"
#include "backend/amd/simulator/operand.h"
#include "backend/amd/simulator/operations.h"
#include "backend/amd/simulator/scalar.h"
#include "backend/amd/simulator/vector.h"
#include "backend/amd/simulator/wait_rules.h"

namespace heddle::amd::simulator {
namespace {

/// Letters of a signature before and behind its colon.
struct Signature {
  std::string_view to, from;
  explicit Signature(std::string_view text)
      : to(text.substr(0, text.find(':'))), from(text.substr(text.find(':') + 1)) {}
};

class Operands {
 public:
  explicit Operands(const AssemblyLine& line) : line_(line) {}
  std::size_t left() const { return line_.operands.size() - at_; }
  const std::string& next() {
    if (left() == 0) throw std::runtime_error("an operand is missing");
    return line_.operands[at_++];
  }

 private:
  const AssemblyLine& line_;
  std::size_t at_ = 0;
};

// --- vector instructions ---

/// Integers saturate where floats are clamped: another operation, with a row of its own.
void choose_saturating(std::string_view name, Instruction& i) {
  const VectorRow* row = find_vector_row(std::string(name) + "_clamp");
  if (!i.clamp || !row) return;
  i.vector = row->run;
  i.clamp = false;
}

void check_modifiers(const Instruction& i) {
  const Type type = i.to[0].type;
  const bool is_float = type == Type::kF16 || type == Type::kF32 || type == Type::kF64 || type == Type::kPackedF16 ||
                        type == Type::kPackedF32;
  if ((i.clamp || i.output_scale != 0) && !is_float) throw std::runtime_error("the saturating form is not simulated");
  const bool is_packed = type == Type::kPackedF16 || type == Type::kPackedF32;
  if (i.output_scale != 0 && is_packed) throw std::runtime_error("an output scale of packed values is not simulated");
}

bool is_packed(Type type) { return type == Type::kPackedF16 || type == Type::kPackedI16 || type == Type::kPackedF32; }

bool is_plain(const Instruction& i) {
  bool plain = i.dpp.kind == Dpp::Kind::kNone && !i.sdwa && !i.clamp && i.output_scale == 0;
  for (std::size_t s = 0; s < i.from_count; ++s) {
    const Operand& operand = i.from[s];
    if (operand.type == Type::kMix) continue;  // the operation itself looks at its modifiers
    plain = plain && !operand.negate && !operand.absolute;
    if (is_packed(operand.type))
      plain = plain && !(i.op_sel >> s & 1) && (i.op_sel_hi >> s & 1) && !((i.neg_lo | i.neg_hi) >> s & 1);
    if (operand.type == Type::kF16 || operand.type == Type::kI16) plain = plain && !(i.op_sel >> s & 1);
  }
  return plain;
}

void decode_vector(const VectorRow& row, std::string_view name, const AssemblyLine& line, const Chip& chip,
                   Instruction& i) {
  const Signature signature(row.signature);
  Operands operands(line);
  i.execute = execute_vector;
  i.vector = row.run;
  i.undefined = row.undefined;
  i.counted_as = row.counted_as;
  i.writes_exec = name.starts_with("v_cmpx_");
  const bool no_result = i.writes_exec && chip.generation > 9;
  if (!no_result) {
    for (const char letter : signature.to)
      i.to[i.to_count++] = parse_operand(operands.next(), type_of_letter(letter), chip.lanes);
  }
  for (const char letter : signature.from) {
    Operand& from = i.from[i.from_count++];
    if (letter == '=') {
      from = i.to[0];
    } else if (letter == 'm' && operands.left() == 0) {
      from = parse_operand("vcc", Type::kMask, chip.lanes);
    } else {
      from = parse_operand(operands.next(), type_of_letter(letter), chip.lanes);
    }
  }
  if (operands.left() != 0) throw std::runtime_error("more operands than the operation has");
  i.op_sel_hi = is_packed(i.from[0].type) ? 7 : 0;
  apply_modifiers(line, i);
  i.keeps_high_half = chip.generation > 9 || name.starts_with("v_fma_mix");
  if (name == "v_fma_mixhi_f16") i.op_sel |= 8;
  choose_saturating(name, i);
  check_modifiers(i);
  i.plain = is_plain(i);
}

void decode_dual(const AssemblyLine& line, const Chip& chip, Instruction& i, Program& program) {
  const auto half = [&](const AssemblyLine& text, Instruction& to) {
    const std::string name = canonical_name(text.mnemonic);
    const VectorRow* row = find_vector_row(name);
    if (!row) throw std::runtime_error("unknown half of a pair");
    decode_vector(*row, name, text, chip, to);
  };
  Instruction second;
  half(line, i);
  half(parse_instruction(line.second_half), second);
  i.execute = execute_dual;
  i.counted_as = Class::kDual;
  i.second = static_cast<std::int32_t>(program.second_halves.size());
  program.second_halves.push_back(second);
}

void decode_matrix(int form, const AssemblyLine& line, Instruction& i) {
  Operands operands(line);
  i.detail = form;
  i.execute = execute_matrix;
  i.counted_as = Class::kMatrix;
  i.to[0] = parse_registers(operands.next());
  i.to_count = 1;
  for (int s = 0; s < 2; ++s) i.from[i.from_count++] = parse_registers(operands.next());
  const Type c_type = matrix_forms()[static_cast<std::size_t>(form)].c == ElementType::kF64 ? Type::kF64 : Type::kF32;
  const std::string& c = operands.next();
  i.from[2] = c.find('.') != std::string::npos || c[0] == '-' || (c[0] >= '0' && c[0] <= '9')
                  ? parse_operand(c, c_type, 64)
                  : parse_registers(c);
  i.from_count = 3;
  apply_modifiers(line, i);
}

// --- scalar instructions ---

void decode_scalar(const ScalarRow& row, const AssemblyLine& line, const Chip& chip, Instruction& i) {
  const Signature signature(row.signature);
  Operands operands(line);
  i.execute = execute_scalar;
  i.scalar = row.run;
  i.counted_as = Class::kScalar;
  i.detail = static_cast<std::int32_t>(row.rule);
  const std::string_view name = row.name;
  i.reads_scc =
      row.rule == ScalarRule::kSelect || name == "s_addc_u32" || name == "s_subb_u32" || name.ends_with("_co_ci_u32");
  for (const char letter : signature.to)
    i.to[i.to_count++] = parse_operand(operands.next(), type_of_letter(letter), chip.lanes);
  for (const char letter : signature.from) {
    Operand& from = i.from[i.from_count++];
    if (letter == '=') {
      from = i.to[0];
    } else if (letter == 't' || letter == 'u') {  // 16 bits, with sign or without
      const std::int64_t value = parse_number(operands.next());
      from.kind = Operand::Kind::kConstant;
      from.value = letter == 't'
                       ? static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int16_t>(value)))
                       : static_cast<std::uint64_t>(value & 0xffff);
    } else {
      from = parse_operand(operands.next(), type_of_letter(letter), chip.lanes);
    }
  }
  if (operands.left() != 0) throw std::runtime_error("more operands than the operation has");
}

// --- the other operations ---

void decode_operation(const OperationRow& row, const AssemblyLine& line, const Chip& chip, Instruction& i) {
  i.execute = row.execute;
  i.counted_as = row.counted_as;
  i.detail = row.detail;
  if (row.counted_as == Class::kWait) {
    i.offset = wait_limits(line);
    return;
  }
  if (row.counted_as == Class::kNoOperation || row.counted_as == Class::kCache || row.counted_as == Class::kBarrier)
    return;
  const Signature signature(row.signature);
  Operands operands(line);
  const auto parse = [&](char letter) {
    const std::string& text = operands.next();
    if (letter == '*') return parse_registers(text);
    if (letter == '-') return Operand{};
    if (letter != 'o') return parse_operand(text, type_of_letter(letter), chip.lanes);
    const Operand operand = parse_registers(text);
    if (operand.kind != Operand::Kind::kConstant) return operand;
    i.offset = static_cast<std::int64_t>(operand.value);
    return Operand{};
  };
  for (const char letter : signature.to) i.to[i.to_count++] = parse(letter);
  for (const char letter : signature.from) i.from[i.from_count++] = parse(letter);
  apply_modifiers(line, i);
}

[[noreturn]] void execute_unknown(Execution& x, const Instruction& i) {
  throw std::runtime_error(fmt::format("{} (at {:#x}) is not simulated",
                                       x.program.texts[static_cast<std::size_t>(&i - x.program.instructions.data())],
                                       i.address));
}

void decode_line(const AssemblyLine& line, const Chip& chip, Instruction& i, Program& program) {
  const std::string name = canonical_name(line.mnemonic);
  std::string row_name = name;
  if (row_name.starts_with("v_cmpx_")) row_name.replace(0, 7, "v_cmp_");
  if (!line.second_half.empty()) {
    decode_dual(line, chip, i, program);
  } else if (const VectorRow* vector = find_vector_row(row_name)) {
    decode_vector(*vector, name, line, chip, i);
  } else if (const int form = find_matrix_form(name, chip.generation); form >= 0) {
    decode_matrix(form, line, i);
  } else if (const ScalarRow* scalar = find_scalar_row(name)) {
    decode_scalar(*scalar, line, chip, i);
  } else if (const OperationRow* operation = find_operation_row(name)) {
    decode_operation(*operation, line, chip, i);
  } else if (!decode_memory(name, line, i)) {
    throw std::runtime_error("unknown instruction");
  }
}

void touch(Instruction& i, const Operand& operand, bool written) {
  if (operand.kind != Operand::Kind::kVector && operand.kind != Operand::Kind::kScalar) return;
  if (operand.kind == Operand::Kind::kScalar && operand.index == kNull) return;
  const int base = operand.kind == Operand::Kind::kScalar ? kVectorRegisters : 0;
  const int count = std::max<int>(operand.count, operand.type == Type::kNone ? 1 : registers_of(operand.type, 32));
  if (i.touched_count == i.touched.size()) throw std::runtime_error("too many operands");
  i.touched[i.touched_count++] = {static_cast<std::int16_t>(operand.index + base), static_cast<std::int16_t>(count),
                                  written};
}

void touch_all(Instruction& i, const Instruction& operands) {
  for (std::size_t d = 0; d < operands.to_count; ++d) touch(i, operands.to[d], true);
  for (std::size_t s = 0; s < operands.from_count; ++s) touch(i, operands.from[s], false);
}

std::int32_t cycles_of(const Instruction& i, const Chip& chip) {
  switch (i.counted_as) {
    case Class::kVector:
    case Class::kDual:
      return chip.generation == 9 ? 4 : 1;
    case Class::kTranscendental:
      return chip.generation == 9 ? 16 : 4;
    case Class::kMatrix: {
      const MatrixForm& form = matrix_forms()[static_cast<std::size_t>(i.detail)];
      return chip.is_gfx90a ? form.gfx90a_cycles : form.cycles;
    }
    default:
      return 0;
  }
}

void resolve_branches(const Disassembly& disassembly, Program& program) {
  const std::size_t count = program.instructions.size();
  for (std::size_t n = 0; n < count; ++n) {
    Instruction& i = program.instructions[n];
    const std::string& name = disassembly.lines[n].mnemonic;
    const std::uint64_t next = n + 1 < count ? program.instructions[n + 1].address : i.address + 4;
    if (name == "s_getpc_b64" || name == "s_swappc_b64") i.offset = static_cast<std::int64_t>(next);
    if (!name.starts_with("s_branch") && !name.starts_with("s_cbranch")) continue;
    const auto words = static_cast<std::int16_t>(parse_number(disassembly.lines[n].operands.at(0)));
    i.target = program.index_at(next + static_cast<std::uint64_t>(4 * static_cast<std::int64_t>(words)));
    if (i.target < 0) program.unknown[n] = "a branch to where no instruction begins";
  }
}

}  // namespace

Program decode(const Disassembly& disassembly, const Chip& chip) {
  Program program;
  program.instructions.reserve(disassembly.lines.size());
  for (const AssemblyLine& line : disassembly.lines) {
    const auto index = static_cast<int>(program.instructions.size());
    program.index_of.emplace(line.address, index);
    program.texts.push_back(line.text);
    Instruction i;
    try {
      decode_line(line, chip, i, program);
      touch_all(i, i);
      if (i.second >= 0) touch_all(i, program.second_halves[static_cast<std::size_t>(i.second)]);
    } catch (const std::runtime_error& error) {
      i = Instruction{};
      i.execute = execute_unknown;
      program.unknown[static_cast<std::size_t>(index)] = fmt::format("{}: {}", line.text, error.what());
    }
    i.address = line.address;
    i.cycles = cycles_of(i, chip);
    i.wait_group = static_cast<std::uint8_t>(wait_group_of(i, chip));
    program.instructions.push_back(i);
  }
  resolve_branches(disassembly, program);
  return program;
}

}  // namespace heddle::amd::simulator
