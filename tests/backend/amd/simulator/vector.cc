#include "backend/amd/simulator/vector.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "backend/amd/simulator/modifiers.h"

namespace heddle::amd::simulator {
namespace {

/// Rows that sources with modifiers, scalars and constants are put into, and the rows of the results.
struct Workspace {
  Row from[5];
  Row from_high[5];
  Row to, to_high;
};

bool is_two_registers(Type type) { return type == Type::kF64 || type == Type::kI64 || type == Type::kPackedF32; }

void broadcast(Row& row, std::uint32_t value, int lanes) { std::fill_n(row.lane.data(), lanes, value); }

/// A source's rows and undefined lanes, before modifiers.
void fetch(VectorCall& c, std::size_t s, Workspace& w) {
  const Operand& operand = c.instruction.from[s];
  const bool wide = is_two_registers(operand.type);
  if (operand.kind == Operand::Kind::kVector) {
    const auto index = static_cast<std::size_t>(operand.index);
    c.from[s] = c.x.wave.v[index].lane.data();
    c.undefined[s] = c.x.wave.undefined[index];
    if (wide) {
      c.from_high[s] = c.x.wave.v[index + 1].lane.data();
      c.undefined_high[s] = c.x.wave.undefined[index + 1];
    }
    return;
  }
  const ScalarValue value = read_scalar(c.x.wave, operand);
  if (operand.type == Type::kMask) {
    c.mask[s] = value.bits;
    c.undefined[s] = {value.undefined, value.undefined};
    return;
  }
  broadcast(w.from[s], static_cast<std::uint32_t>(value.bits), c.lanes);
  c.from[s] = w.from[s].lane.data();
  if (wide) {
    broadcast(w.from_high[s], static_cast<std::uint32_t>(value.bits >> 32), c.lanes);
    c.from_high[s] = w.from_high[s].lane.data();
  }
  const auto spread = [](std::uint64_t bits) { return bits != 0 ? ~0ull : 0; };
  c.undefined[s] = {spread(value.undefined & 0xffff), spread(value.undefined >> 16 & 0xffff)};
  if (wide) c.undefined_high[s] = {spread(value.undefined >> 32 & 0xffff), spread(value.undefined >> 48)};
}

void fetch_sources(VectorCall& c, Workspace& w) {
  const Instruction& i = c.instruction;
  for (std::size_t s = 0; s < i.from_count; ++s) fetch(c, s, w);
  if (!i.plain) apply_source_modifiers(c, w.from, w.from_high);
}

void find_undefined(VectorCall& c, UndefinedRule rule) {
  Undefined all;
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) {
    all |= c.undefined[s];
    all |= c.undefined_high[s];
  }
  if ((all.any() & c.exec) == 0) return;
  if (rule) {
    rule(c);
  } else {
    c.to_undefined = c.to_high_undefined = {all.any(), all.any()};
  }
}

void merge_row(Row& to, const std::uint32_t* from, std::uint64_t exec, int lanes, std::uint64_t all) {
  if (exec == all) {
    std::copy_n(from, lanes, to.lane.data());
    return;
  }
  for (int first = 0; first < lanes; first += 32) {
    const auto active = static_cast<std::uint32_t>(exec >> first);
    std::uint32_t* row = to.lane.data() + first;
    for (std::uint32_t l = 0; l < 32; ++l)
      row[l] = active >> l & 1 ? from[static_cast<std::uint32_t>(first) + l] : row[l];
  }
}

void set_undefined(Undefined& to, const Undefined& value, std::uint64_t exec) {
  to.low = (to.low & ~exec) | (value.low & exec);
  to.high = (to.high & ~exec) | (value.high & exec);
}

void commit_mask(VectorCall& c, const Operand& operand) {
  // Lanes that exec leaves out get 0.
  const ScalarValue value{c.to_mask & c.exec, (c.to_undefined.any() | c.to_high_undefined.any()) & c.exec};
  write_scalar(c.x, operand, value);
}

void commit(VectorCall& c) {
  const Instruction& i = c.instruction;
  for (std::size_t d = 0; d < i.to_count; ++d) {
    const Operand& operand = i.to[d];
    if (operand.type == Type::kMask) {
      commit_mask(c, operand);
      continue;
    }
    const auto index = static_cast<std::size_t>(operand.index);
    Wave& wave = c.x.wave;
    if (!i.plain || operand.type == Type::kF16 || operand.type == Type::kI16) apply_result_modifiers(c, operand);
    merge_row(wave.v[index], c.to, c.exec, c.lanes, c.x.all_lanes());
    set_undefined(wave.undefined[index], c.to_undefined, c.exec);
    if (is_two_registers(operand.type)) {
      merge_row(wave.v[index + 1], c.to_high, c.exec, c.lanes, c.x.all_lanes());
      set_undefined(wave.undefined[index + 1], c.to_high_undefined, c.exec);
    }
  }
  if (i.writes_exec) {
    Operand exec{.kind = Operand::Kind::kScalar,
                 .type = Type::kMask,
                 .count = static_cast<std::uint8_t>(c.lanes / 32),
                 .index = kExec};
    commit_mask(c, exec);
  }
}

}  // namespace

void execute_vector(Execution& x, const Instruction& instruction) {
  Workspace w;
  VectorCall c{.x = x, .instruction = instruction, .lanes = x.lanes(), .exec = x.exec()};
  c.to = w.to.lane.data();
  c.to_high = w.to_high.lane.data();
  fetch_sources(c, w);
  instruction.vector(c);
  find_undefined(c, instruction.undefined);
  commit(c);
}

// Both halves of a VOPD pair read before either writes.
void execute_dual(Execution& x, const Instruction& instruction) {
  const Instruction& second = x.program.second_halves[static_cast<std::size_t>(instruction.second)];
  Workspace w0, w1;
  VectorCall c0{.x = x, .instruction = instruction, .lanes = x.lanes(), .exec = x.exec()};
  VectorCall c1{.x = x, .instruction = second, .lanes = x.lanes(), .exec = x.exec()};
  const std::pair<VectorCall*, Workspace*> halves[] = {{&c0, &w0}, {&c1, &w1}};
  for (const auto& [c, w] : halves) {
    c->to = w->to.lane.data();
    c->to_high = w->to_high.lane.data();
    fetch_sources(*c, *w);
    c->instruction.vector(*c);
    find_undefined(*c, c->instruction.undefined);
  }
  commit(c0);
  commit(c1);
}

const VectorRow* find_vector_row(std::string_view name) {
  static const auto rows = [] {
    std::unordered_map<std::string_view, const VectorRow*> all;
    for (const auto& table : {float_rows(), double_rows(), half_rows(), integer_rows(), narrow_integer_rows(),
                              wide_integer_rows(), conversion_rows(), compare_rows(), move_rows()}) {
      for (const VectorRow& row : table) all.emplace(row.name, &row);
    }
    return all;
  }();
  const auto row = rows.find(name);
  return row == rows.end() ? nullptr : row->second;
}

}  // namespace heddle::amd::simulator
