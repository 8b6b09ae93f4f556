#include "backend/amd/simulator/operand.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "backend/amd/simulator/half.h"
#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {
namespace {

std::optional<std::int64_t> number(std::string_view text) {
  const bool negative = text.starts_with('-');
  std::string_view digits = negative ? text.substr(1) : text;
  const int base = digits.starts_with("0x") ? 16 : 10;
  if (base == 16) digits.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  return negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

struct Named {
  int index;
  int count;
};

std::optional<Named> named_register(std::string_view text) {
  static const std::unordered_map<std::string_view, Named> names = {
      {"vcc", {kVcc, 2}},
      {"vcc_lo", {kVcc, 1}},
      {"vcc_hi", {kVcc + 1, 1}},
      {"exec", {kExec, 2}},
      {"exec_lo", {kExec, 1}},
      {"exec_hi", {kExec + 1, 1}},
      {"m0", {kM0, 1}},
      {"null", {kNull, 1}},
      {"flat_scratch", {kFlatScratch, 2}},
      {"flat_scratch_lo", {kFlatScratch, 1}},
      {"flat_scratch_hi", {kFlatScratch + 1, 1}},
  };
  const auto found = names.find(text);
  if (found == names.end()) return std::nullopt;
  return found->second;
}

/// v12, v[4:7], s3, a[0:3], ttmp9.
std::optional<Operand> numbered_register(std::string_view text) {
  struct Prefix {
    std::string_view name;
    Operand::Kind kind;
    int first;
  };
  static constexpr Prefix kPrefixes[] = {{"ttmp", Operand::Kind::kScalar, kTemporary},
                                         {"v", Operand::Kind::kVector, 0},
                                         {"a", Operand::Kind::kVector, kFirstAccumulator},
                                         {"s", Operand::Kind::kScalar, 0}};
  for (const Prefix& prefix : kPrefixes) {
    if (!text.starts_with(prefix.name)) continue;
    std::string_view rest = text.substr(prefix.name.size());
    Operand operand{.kind = prefix.kind};
    if (rest.starts_with('[') && rest.ends_with(']')) {
      rest = rest.substr(1, rest.size() - 2);
      const std::size_t colon = rest.find(':');
      const auto first = number(rest.substr(0, colon));
      const auto last = colon == std::string_view::npos ? first : number(rest.substr(colon + 1));
      if (!first || !last) return std::nullopt;
      operand.index = static_cast<std::int16_t>(*first + prefix.first);
      operand.count = static_cast<std::uint8_t>(*last - *first + 1);
      return operand;
    }
    const auto index = number(rest);
    if (!index) continue;
    operand.index = static_cast<std::int16_t>(*index + prefix.first);
    return operand;
  }
  return std::nullopt;
}

/// Addresses that the hardware gives as constants.
std::optional<std::uint64_t> aperture(std::string_view text) {
  if (text == "src_shared_base") return static_cast<std::uint64_t>(kLdsAperture) << 32;
  if (text == "src_private_base") return static_cast<std::uint64_t>(kScratchAperture) << 32;
  if (text == "src_shared_limit") return static_cast<std::uint64_t>(kLdsAperture) << 32 | 0xffffffff;
  if (text == "src_private_limit") return static_cast<std::uint64_t>(kScratchAperture) << 32 | 0xffffffff;
  return std::nullopt;
}

/// The bits of a constant written as a decimal fraction, for an operand of the type.
std::optional<std::uint64_t> fraction(std::string_view text, Type type) {
  if (text.find('.') == std::string_view::npos) return std::nullopt;
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() + copy.size()) return std::nullopt;
  const bool inverse_two_pi = copy == "0.15915494" || copy == "0.15915494309189532" || copy == "0.1592";
  switch (type) {
    case Type::kF64:
    case Type::kI64:
      return inverse_two_pi ? 0x3fc45f306dc9c882 : std::bit_cast<std::uint64_t>(value);
    case Type::kF16:
    case Type::kI16:
    case Type::kPackedF16:
    case Type::kPackedI16:
      return inverse_two_pi ? 0x3118 : float_to_half(static_cast<float>(value));
    case Type::kPackedF32: {
      const std::uint64_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      return bits | bits << 32;
    }
    default:
      return inverse_two_pi ? 0x3e22f983 : std::bit_cast<std::uint32_t>(static_cast<float>(value));
  }
}

std::uint64_t integer_constant(std::int64_t value, std::string_view text, Type type) {
  const auto bits = static_cast<std::uint64_t>(value);
  // A literal of an f64 operand is its upper half; a small integer is all 64 bits.
  if (type == Type::kF64 && text.starts_with("0x") && bits <= 0xffffffff) return bits << 32;
  if (type == Type::kF64 || type == Type::kI64 || type == Type::kMask) return bits;
  if (type == Type::kPackedF32) return (bits & 0xffffffff) | bits << 32;
  return bits & 0xffffffff;
}

}  // namespace

Type type_of_letter(char letter) {
  switch (letter) {
    case 'f':
      return Type::kF32;
    case 'd':
      return Type::kF64;
    case 'h':
      return Type::kF16;
    case 'i':
      return Type::kI32;
    case 's':
      return Type::kI16;
    case 'l':
      return Type::kI64;
    case 'p':
      return Type::kPackedF16;
    case 'q':
      return Type::kPackedI16;
    case 'w':
      return Type::kPackedF32;
    case 'x':
      return Type::kMix;
    case 'm':
      return Type::kMask;
    default:
      throw std::logic_error(fmt::format("no type has the letter {}", letter));
  }
}

int registers_of(Type type, int lanes) {
  switch (type) {
    case Type::kF64:
    case Type::kI64:
    case Type::kPackedF32:
      return 2;
    case Type::kMask:
      return lanes / 32;
    default:
      return 1;
  }
}

Operand parse_operand(std::string_view text, Type type, int lanes) {
  const std::string_view whole = text;
  bool negate = false, absolute = false, sign_extend = false;
  if (text.starts_with("sext(")) {
    sign_extend = true;
    text = text.substr(5, text.size() - 6);
  }
  if (text.starts_with('-') && !(text.size() > 1 && text[1] >= '0' && text[1] <= '9')) {
    negate = true;
    text.remove_prefix(1);
  } else if (text.starts_with("neg(")) {
    negate = true;
    text = text.substr(4, text.size() - 5);
  }
  if (text.starts_with('|')) {
    absolute = true;
    text = text.substr(1, text.size() - 2);
  }
  Operand operand;
  if (const auto named = named_register(text)) {
    operand = {.kind = Operand::Kind::kScalar,
               .count = static_cast<std::uint8_t>(named->count),
               .index = static_cast<std::int16_t>(named->index)};
  } else if (const auto numbered = numbered_register(text)) {
    operand = *numbered;
  } else if (const auto base = aperture(text)) {
    // A 32-bit source gets the upper half: the lower one is zero.
    operand = {.kind = Operand::Kind::kConstant, .value = registers_of(type, lanes) == 1 ? *base >> 32 : *base};
  } else if (const auto bits = fraction(text, type)) {
    operand = {.kind = Operand::Kind::kConstant, .value = *bits};
  } else if (const auto value = number(text)) {
    operand = {.kind = Operand::Kind::kConstant, .value = integer_constant(*value, text, type)};
  } else {
    throw std::runtime_error(fmt::format("operand '{}' is not known", whole));
  }
  operand.type = type;
  operand.negate = negate;
  operand.absolute = absolute;
  operand.sign_extend = sign_extend;
  if (operand.kind == Operand::Kind::kScalar && operand.index != kNull && operand.count < registers_of(type, lanes) &&
      type != Type::kMask) {
    throw std::runtime_error(fmt::format("operand '{}' has too few registers", whole));
  }
  if (type == Type::kMask) operand.count = static_cast<std::uint8_t>(registers_of(type, lanes));
  return operand;
}

Operand parse_registers(std::string_view text) {
  if (text == "off" || text == "null") return {};
  if (const auto named = named_register(text)) {
    return {.kind = Operand::Kind::kScalar,
            .count = static_cast<std::uint8_t>(named->count),
            .index = static_cast<std::int16_t>(named->index)};
  }
  if (const auto numbered = numbered_register(text)) return *numbered;
  if (const auto value = number(text))
    return {.kind = Operand::Kind::kConstant, .value = static_cast<std::uint64_t>(*value)};
  throw std::runtime_error(fmt::format("operand '{}' is not known", text));
}

std::int64_t parse_number(std::string_view text) {
  const auto value = number(text);
  if (!value) throw std::runtime_error(fmt::format("'{}' is not a number", text));
  return *value;
}

}  // namespace heddle::amd::simulator
