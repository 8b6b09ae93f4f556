#include "backend/amd/simulator/modifiers.h"

#include <algorithm>

#include "backend/amd/simulator/half.h"

namespace heddle::amd::simulator {
namespace {

/// `c.from[s]` in the caller's row, to be changed there.
std::uint32_t* owned(VectorCall& c, std::size_t s, Row& row) {
  if (c.from[s] != row.lane.data()) {
    std::copy_n(c.from[s], c.lanes, row.lane.data());
    c.from[s] = row.lane.data();
  }
  return row.lane.data();
}

std::uint32_t* owned_high(VectorCall& c, std::size_t s, Row& row) {
  if (c.from_high[s] != row.lane.data()) {
    std::copy_n(c.from_high[s], c.lanes, row.lane.data());
    c.from_high[s] = row.lane.data();
  }
  return row.lane.data();
}

// --- DPP ---

/// The lane that lane l reads, or -1.
int dpp_source(const Dpp& dpp, int l, int lanes) {
  using Kind = Dpp::Kind;
  const int row = l & ~15, in_row = l & 15, amount = dpp.amounts[0];
  switch (dpp.kind) {
    case Kind::kQuadPerm:
      return (l & ~3) + dpp.amounts[static_cast<std::size_t>(l & 3)];
    case Kind::kRowShl:
      return in_row + amount < 16 ? l + amount : -1;
    case Kind::kRowShr:
      return in_row >= amount ? l - amount : -1;
    case Kind::kRowRor:
      return row + ((in_row - amount) & 15);
    case Kind::kRowMirror:
      return row + 15 - in_row;
    case Kind::kRowHalfMirror:
      return (l & ~7) + 7 - (l & 7);
    case Kind::kRowShare:
      return row + amount;
    case Kind::kRowXmask:
      return row + (in_row ^ amount);
    case Kind::kRowBcast15:
      return l >= 16 ? row - 1 : -1;
    case Kind::kRowBcast31:
      return l >= 32 ? (l & ~31) - 1 : -1;
    case Kind::kWaveShl1:
      return l + 1 < lanes ? l + 1 : -1;
    case Kind::kWaveShr1:
      return l - 1;
    case Kind::kWaveRol1:
      return (l + 1) % lanes;
    case Kind::kWaveRor1:
      return (l + lanes - 1) % lanes;
    case Kind::kDpp8:
      return (l & ~7) + dpp.amounts[static_cast<std::size_t>(l & 7)];
    case Kind::kNone:
      break;
  }
  return l;
}

std::uint64_t moved_bit(std::uint64_t bits, int from, int to) { return (bits >> from & 1) << to; }

void apply_dpp(VectorCall& c, Row& row, Row& high_row) {
  const Dpp& dpp = c.instruction.dpp;
  const bool wide = c.from_high[0] != nullptr;
  Row moved{}, moved_high{};
  Undefined undefined, undefined_high;
  std::uint64_t off = 0;
  for (int l = 0; l < c.lanes; ++l) {
    const int from = dpp_source(dpp, l, c.lanes);
    const bool enabled = (dpp.row_mask >> (l / 16) & 1) && (dpp.bank_mask >> (l % 16 / 4) & 1);
    const bool readable = from >= 0 && (dpp.fetch_inactive || (c.exec >> from & 1));
    if (!enabled || (!readable && !dpp.bound_control)) {
      off |= 1ull << l;
    } else if (readable) {
      moved[l] = c.from[0][from];
      if (wide) moved_high[l] = c.from_high[0][from];
      undefined.low |= moved_bit(c.undefined[0].low, from, l);
      undefined.high |= moved_bit(c.undefined[0].high, from, l);
      undefined_high.low |= moved_bit(c.undefined_high[0].low, from, l);
      undefined_high.high |= moved_bit(c.undefined_high[0].high, from, l);
    }
  }
  row = moved;
  c.from[0] = row.lane.data();
  if (wide) {
    high_row = moved_high;
    c.from_high[0] = high_row.lane.data();
  }
  c.undefined[0] = undefined;
  c.undefined_high[0] = undefined_high;
  c.exec &= ~off;
}

// --- SDWA ---

struct Part {
  int shift;
  std::uint32_t mask;
};

Part part_of(std::uint8_t select) {
  if (select == kDword) return {0, 0xffffffff};
  if (select >= kWord0) return {16 * (select - kWord0), 0xffff};
  return {8 * (select - kByte0), 0xff};
}

Undefined undefined_part(const Undefined& all, std::uint8_t select) {
  if (select == kDword) return all;
  const bool high = select == kWord1 || select == kByte2 || select == kByte3;
  return {high ? all.high : all.low, 0};
}

void select_part(VectorCall& c, std::size_t s, Row& row) {
  const Operand& operand = c.instruction.from[s];
  if (operand.selected == kDword && !operand.sign_extend) return;
  const Part part = part_of(operand.selected);
  std::uint32_t* lane = owned(c, s, row);
  const std::uint32_t sign = operand.sign_extend && part.mask != 0xffffffff ? (part.mask >> 1) + 1 : 0;
  for (int l = 0; l < c.lanes; ++l) {
    const std::uint32_t value = lane[l] >> part.shift & part.mask;
    lane[l] = (value ^ sign) - sign;
  }
  c.undefined[s] = undefined_part(c.undefined[s], operand.selected);
  if (sign != 0) c.undefined[s].high = c.undefined[s].low;
}

// --- neg, abs, op_sel ---

void change_signs(std::uint32_t* lane, int lanes, const Operand& operand, std::uint32_t sign) {
  const std::uint32_t kept = operand.absolute ? ~sign : 0xffffffff;
  const std::uint32_t flipped = operand.negate ? sign : 0;
  for (int l = 0; l < lanes; ++l) lane[l] = (lane[l] & kept) ^ flipped;
}

void select_half(VectorCall& c, std::size_t s, Row& row) {
  if (!(c.instruction.op_sel >> s & 1)) return;
  std::uint32_t* lane = owned(c, s, row);
  for (int l = 0; l < c.lanes; ++l) lane[l] >>= 16;
  c.undefined[s] = {c.undefined[s].high, 0};
}

void arrange_packed_halves(VectorCall& c, std::size_t s, Row& row) {
  const Instruction& i = c.instruction;
  const bool low_from_high = i.op_sel >> s & 1, high_from_high = i.op_sel_hi >> s & 1;
  const std::uint32_t sign = i.from[s].type == Type::kPackedF16
                                 ? (i.neg_lo >> s & 1 ? 0x8000u : 0) | (i.neg_hi >> s & 1 ? 0x80000000u : 0)
                                 : 0;
  if (!low_from_high && high_from_high && sign == 0) return;
  std::uint32_t* lane = owned(c, s, row);
  for (int l = 0; l < c.lanes; ++l) {
    const std::uint32_t low = low_from_high ? lane[l] >> 16 : lane[l] & 0xffff;
    const std::uint32_t high = high_from_high ? lane[l] & 0xffff0000 : lane[l] << 16;
    lane[l] = (low | high) ^ sign;
  }
  const Undefined old = c.undefined[s];
  c.undefined[s] = {low_from_high ? old.high : old.low, high_from_high ? old.high : old.low};
}

void arrange_packed_registers(VectorCall& c, std::size_t s, Row& row, Row& high_row) {
  const Instruction& i = c.instruction;
  const std::uint32_t *low = c.from[s], *high = c.from_high[s];
  Row first, second;
  const std::uint32_t low_sign = i.neg_lo >> s & 1 ? 0x80000000u : 0, high_sign = i.neg_hi >> s & 1 ? 0x80000000u : 0;
  for (int l = 0; l < c.lanes; ++l) {
    first[l] = (i.op_sel >> s & 1 ? high[l] : low[l]) ^ low_sign;
    second[l] = (i.op_sel_hi >> s & 1 ? high[l] : low[l]) ^ high_sign;
  }
  const Undefined low_undefined = c.undefined[s], high_undefined = c.undefined_high[s];
  c.undefined[s] = i.op_sel >> s & 1 ? high_undefined : low_undefined;
  c.undefined_high[s] = i.op_sel_hi >> s & 1 ? high_undefined : low_undefined;
  row = first;
  high_row = second;
  c.from[s] = row.lane.data();
  c.from_high[s] = high_row.lane.data();
}

}  // namespace

void apply_source_modifiers(VectorCall& c, Row* rows, Row* high_rows) {
  const Instruction& i = c.instruction;
  if (i.dpp.kind != Dpp::Kind::kNone) apply_dpp(c, rows[0], high_rows[0]);
  for (std::size_t s = 0; s < i.from_count; ++s) {
    const Operand& operand = i.from[s];
    if (i.sdwa && operand.type != Type::kMask) select_part(c, s, rows[s]);
    switch (operand.type) {
      case Type::kPackedF16:
      case Type::kPackedI16:
        arrange_packed_halves(c, s, rows[s]);
        break;
      case Type::kPackedF32:
        arrange_packed_registers(c, s, rows[s], high_rows[s]);
        break;
      case Type::kF16:
      case Type::kI16:
        select_half(c, s, rows[s]);
        break;
      default:
        break;
    }
    if (!operand.negate && !operand.absolute) continue;
    switch (operand.type) {
      case Type::kF16:
        change_signs(owned(c, s, rows[s]), c.lanes, operand, 0x8000);
        break;
      case Type::kF32:
        change_signs(owned(c, s, rows[s]), c.lanes, operand, 0x80000000);
        break;
      case Type::kF64:
        change_signs(owned_high(c, s, high_rows[s]), c.lanes, operand, 0x80000000);
        break;
      default:
        break;  // kMix: the operation itself looks at them
    }
  }
}

namespace {

float clamped(float value) { return value > 0.0f ? std::min(value, 1.0f) : 0.0f; }  // NaN gives 0

void scale_and_clamp(VectorCall& c, Type type) {
  const Instruction& i = c.instruction;
  const float factor = i.output_scale == 0 ? 1.0f : i.output_scale > 0 ? static_cast<float>(1 << i.output_scale) : 0.5f;
  for (int l = 0; l < c.lanes; ++l) {
    std::uint32_t& bits = c.to[l];
    if (type == Type::kF32) {
      const float value = std::bit_cast<float>(bits) * factor;
      bits = std::bit_cast<std::uint32_t>(i.clamp ? clamped(value) : value);
    } else if (type == Type::kF16) {
      const float value = half_to_float(bits & 0xffff) * factor;
      bits = float_to_half(i.clamp ? clamped(value) : value);
    } else if (type == Type::kPackedF16) {
      bits = float_to_half(clamped(half_to_float(bits & 0xffff))) | float_to_half(clamped(half_to_float(bits >> 16)))
                                                                        << 16;
    } else if (type == Type::kF64) {
      const double value = std::bit_cast<double>(bits | static_cast<std::uint64_t>(c.to_high[l]) << 32) * factor;
      const auto result = std::bit_cast<std::uint64_t>(i.clamp ? (value > 0 ? std::min(value, 1.0) : 0.0) : value);
      bits = static_cast<std::uint32_t>(result);
      c.to_high[l] = static_cast<std::uint32_t>(result >> 32);
    } else if (type == Type::kPackedF32) {
      bits = std::bit_cast<std::uint32_t>(clamped(std::bit_cast<float>(bits)));
      c.to_high[l] = std::bit_cast<std::uint32_t>(clamped(std::bit_cast<float>(c.to_high[l])));
    }
  }
}

/// A 16-bit result takes one half of the register; what the other half gets is the generation's.
void place_half(VectorCall& c, const Operand& operand) {
  const Instruction& i = c.instruction;
  const Row& old = c.x.wave.v[static_cast<std::size_t>(operand.index)];
  const Undefined& was = c.x.wave.undefined[static_cast<std::size_t>(operand.index)];
  const std::uint64_t bits = c.to_undefined.any();
  const bool high = i.op_sel >> 3 & 1;
  if (high) {
    for (int l = 0; l < c.lanes; ++l) c.to[l] = (old[l] & 0xffff) | c.to[l] << 16;
    c.to_undefined = {was.low, bits};
  } else if (i.keeps_high_half) {
    for (int l = 0; l < c.lanes; ++l) c.to[l] = (old[l] & 0xffff0000) | (c.to[l] & 0xffff);
    c.to_undefined = {bits, was.high};
  } else {
    for (int l = 0; l < c.lanes; ++l) c.to[l] &= 0xffff;
    c.to_undefined = {bits, 0};
  }
}

void place_part(VectorCall& c, const Operand& operand) {
  const Instruction& i = c.instruction;
  const Part part = part_of(i.sdwa_to);
  const Row& old = c.x.wave.v[static_cast<std::size_t>(operand.index)];
  const Undefined& was = c.x.wave.undefined[static_cast<std::size_t>(operand.index)];
  for (int l = 0; l < c.lanes; ++l) {
    const std::uint32_t placed = (c.to[l] & part.mask) << part.shift;
    const std::uint32_t around = ~(part.mask << part.shift);
    if (i.sdwa_preserve) {
      c.to[l] = placed | (old[l] & around);
    } else if (i.sdwa_sext) {
      const auto top = static_cast<std::int32_t>(placed << (part.mask == 0xff ? 24 - part.shift : 16 - part.shift));
      c.to[l] = placed | (top < 0 ? ~((part.mask << part.shift) | ((1u << part.shift) - 1)) : 0);
    } else {
      c.to[l] = placed;
    }
  }
  const std::uint64_t bits = c.to_undefined.any();
  const bool high = part.shift >= 16;
  c.to_undefined =
      high ? Undefined{i.sdwa_preserve ? was.low : 0, bits} : Undefined{bits, i.sdwa_preserve ? was.high : 0};
}

}  // namespace

void apply_result_modifiers(VectorCall& c, const Operand& operand) {
  const Instruction& i = c.instruction;
  if (i.clamp || i.output_scale != 0) scale_and_clamp(c, operand.type);
  if (i.sdwa && i.sdwa_to != kDword) {
    place_part(c, operand);
  } else if (operand.type == Type::kF16 || operand.type == Type::kI16) {
    place_half(c, operand);
  }
}

}  // namespace heddle::amd::simulator
