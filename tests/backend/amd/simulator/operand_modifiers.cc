#include <fmt/format.h>

#include <stdexcept>
#include <unordered_map>

#include "backend/amd/simulator/operand.h"

namespace heddle::amd::simulator {
namespace {

/// The numbers of `[1,0,1]`.
std::vector<int> list_of(std::string_view text) {
  std::vector<int> values;
  if (!text.starts_with('[') || !text.ends_with(']')) throw std::runtime_error(fmt::format("'{}' is not a list", text));
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    values.push_back(static_cast<int>(parse_number(text.substr(0, comma))));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return values;
}

std::uint8_t bits_of_list(std::string_view text) {
  std::uint8_t bits = 0;
  int at = 0;
  for (const int value : list_of(text)) bits = static_cast<std::uint8_t>(bits | value << at++);
  return bits;
}

std::uint8_t select_of(std::string_view text) {
  static const std::unordered_map<std::string_view, std::uint8_t> selects = {
      {"DWORD", kDword},  {"BYTE_0", kByte0}, {"BYTE_1", kByte1}, {"BYTE_2", kByte2},
      {"BYTE_3", kByte3}, {"WORD_0", kWord0}, {"WORD_1", kWord1}};
  const auto found = selects.find(text);
  if (found == selects.end()) throw std::runtime_error(fmt::format("'{}' is no part of a register", text));
  return found->second;
}

/// swizzle(SWAP,16), swizzle(BITMASK_PERM,"01pip"), ...: the 16 bits that they stand for.
std::int64_t swizzle_pattern(std::string_view text) {
  const std::size_t open = text.find('('), comma = text.find(',');
  const std::string_view kind = text.substr(open + 1, comma - open - 1);
  const std::string_view rest = text.substr(comma + 1, text.size() - comma - 2);
  if (kind == "SWAP") return 0x1f | parse_number(rest) << 10;
  if (kind == "REVERSE") return 0x1f | (parse_number(rest) - 1) << 10;
  if (kind == "BROADCAST") {
    const std::size_t second = rest.find(',');
    const std::int64_t size = parse_number(rest.substr(0, second)), lane = parse_number(rest.substr(second + 1));
    return (0x1f & -size) | lane << 5;
  }
  if (kind == "QUAD_PERM") {
    std::int64_t pattern = 0x8000, shift = 0;
    for (const char c : rest) {
      if (c >= '0' && c <= '3') pattern |= static_cast<std::int64_t>(c - '0') << shift, shift += 2;
    }
    return pattern;
  }
  if (kind == "BITMASK_PERM") {
    std::int64_t pattern = 0;
    int bit = 4;
    for (const char c : rest) {
      if (c == '"') continue;
      const std::int64_t one = 1 << bit--;
      if (c == 'p' || c == 'i') pattern |= one;
      if (c == 'i') pattern |= one << 10;
      if (c == '1') pattern |= one << 5;
    }
    return pattern;
  }
  throw std::runtime_error(fmt::format("'{}' is no swizzle", text));
}

bool apply_dpp(std::string_view name, std::string_view value, Dpp& dpp) {
  using Kind = Dpp::Kind;
  static const std::unordered_map<std::string_view, Kind> kinds = {{"row_shl", Kind::kRowShl},
                                                                   {"row_shr", Kind::kRowShr},
                                                                   {"row_ror", Kind::kRowRor},
                                                                   {"row_mirror", Kind::kRowMirror},
                                                                   {"row_half_mirror", Kind::kRowHalfMirror},
                                                                   {"row_share", Kind::kRowShare},
                                                                   {"row_newbcast", Kind::kRowShare},
                                                                   {"row_xmask", Kind::kRowXmask},
                                                                   {"wave_shl", Kind::kWaveShl1},
                                                                   {"wave_shr", Kind::kWaveShr1},
                                                                   {"wave_rol", Kind::kWaveRol1},
                                                                   {"wave_ror", Kind::kWaveRor1}};
  if (name == "quad_perm" || name == "dpp8") {
    dpp.kind = name == "dpp8" ? Kind::kDpp8 : Kind::kQuadPerm;
    std::size_t at = 0;
    for (const int lane : list_of(value)) dpp.amounts.at(at++) = static_cast<std::uint8_t>(lane);
  } else if (name == "row_bcast") {
    dpp.kind = value == "15" ? Kind::kRowBcast15 : Kind::kRowBcast31;
  } else if (name == "row_mask") {
    dpp.row_mask = static_cast<std::uint8_t>(parse_number(value));
  } else if (name == "bank_mask") {
    dpp.bank_mask = static_cast<std::uint8_t>(parse_number(value));
  } else if (name == "bound_ctrl") {
    dpp.bound_control = true;  // gfx9 prints the bit that is set as bound_ctrl:0
  } else if (name == "fi") {
    dpp.fetch_inactive = value != "0";
  } else if (const auto kind = kinds.find(name); kind != kinds.end()) {
    dpp.kind = kind->second;
    if (!value.empty()) dpp.amounts[0] = static_cast<std::uint8_t>(parse_number(value));
  } else {
    return false;
  }
  return true;
}

bool apply_sdwa(std::string_view name, std::string_view value, Instruction& i) {
  if (name == "dst_sel") {
    i.sdwa_to = select_of(value);
  } else if (name == "dst_unused") {
    i.sdwa_preserve = value == "UNUSED_PRESERVE";
    i.sdwa_sext = value == "UNUSED_SEXT";
  } else if (name == "src0_sel" || name == "src1_sel") {
    i.from[name == "src0_sel" ? 0 : 1].selected = select_of(value);
  } else {
    return false;
  }
  i.sdwa = true;
  return true;
}

/// Cache policy: of no meaning to values. What says that an atomic returns is looked at by the decoder.
bool is_cache_policy(std::string_view name) {
  for (const char* known : {"glc", "slc", "dlc", "nt", "sc0", "sc1", "scope", "th", "gds"}) {
    if (name == known) return name != "gds";
  }
  return false;
}

}  // namespace

void apply_modifiers(const AssemblyLine& line, Instruction& i) {
  for (const std::string& modifier : line.modifiers) {
    const std::size_t colon = modifier.find(':');
    const std::string_view name = std::string_view(modifier).substr(0, colon);
    const std::string_view value =
        colon == std::string::npos ? std::string_view() : std::string_view(modifier).substr(colon + 1);
    if (name == "op_sel") {
      i.op_sel = bits_of_list(value);
      const std::size_t length = list_of(value).size();
      // The last of the list is the result's: bit 3, however many sources there are.
      if (length == i.from_count + 1u && length < 4) {
        const std::uint8_t last = i.op_sel >> (length - 1) & 1;
        i.op_sel = static_cast<std::uint8_t>((i.op_sel & ((1 << (length - 1)) - 1)) | last << 3);
      }
    } else if (name == "op_sel_hi") {
      i.op_sel_hi = bits_of_list(value);
    } else if (name == "neg_lo") {
      i.neg_lo = bits_of_list(value);
    } else if (name == "neg_hi") {
      i.neg_hi = bits_of_list(value);
    } else if (name == "clamp") {
      i.clamp = true;
    } else if (name == "mul") {
      i.output_scale = value == "2" ? 1 : 2;
    } else if (name == "div") {
      i.output_scale = -1;
    } else if (name == "offset") {
      i.offset = value.starts_with("swizzle") ? swizzle_pattern(value) : parse_number(value);
    } else if (name == "offset0") {
      i.offset = parse_number(value);
    } else if (name == "offset1") {
      i.offset1 = parse_number(value);
    } else if (name == "offen") {
      i.offset_enable = true;
    } else if (name == "idxen") {
      i.index_enable = true;
    } else if (!apply_dpp(name, value, i.dpp) && !apply_sdwa(name, value, i) && !is_cache_policy(name)) {
      throw std::runtime_error(fmt::format("modifier '{}' is not known", modifier));
    }
  }
}

}  // namespace heddle::amd::simulator
