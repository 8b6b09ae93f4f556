#include "backend/amd/simulator/undefined_rules.h"

#include <optional>

namespace heddle::amd::simulator {
namespace {

/// The source's value if all lanes have the same: a constant, or a scalar register.
std::optional<std::uint32_t> uniform(const VectorCall& c, std::size_t s) {
  if (c.instruction.from[s].kind == Operand::Kind::kVector) return std::nullopt;
  return c.from[s][0];
}

Undefined whole(const Undefined& u) { return {u.any(), u.any()}; }

Undefined masked(const Undefined& u, std::uint32_t mask) {
  return {mask & 0xffff ? u.low : 0, mask >> 16 ? u.high : 0};
}

Undefined shifted_left(const Undefined& u, std::uint32_t amount) {
  if (amount == 0) return u;
  if (amount < 16) return {u.low, u.any()};
  return {0, u.low};
}

Undefined shifted_right(const Undefined& u, std::uint32_t amount) {
  if (amount == 0) return u;
  if (amount < 16) return {u.any(), u.high};
  return {u.high, 0};
}

void any(VectorCall& c) {
  Undefined all;
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) all |= c.undefined[s];
  c.to_undefined = whole(all);
}

}  // namespace

void undefined_by_half(VectorCall& c) {
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) c.to_undefined |= c.undefined[s];
}

void undefined_and(VectorCall& c) {
  for (std::size_t s = 0; s < 2; ++s) {
    const auto mask = uniform(c, 1 - s);
    c.to_undefined |= mask ? masked(c.undefined[s], *mask) : c.undefined[s];
  }
}

void undefined_and_or(VectorCall& c) {
  undefined_and(c);
  c.to_undefined |= c.undefined[2];
}

void undefined_shift_left(VectorCall& c) {
  const auto amount = uniform(c, 0);
  if (!amount) return any(c);
  c.to_undefined = shifted_left(c.undefined[1], *amount & 31);
}

void undefined_shift_right(VectorCall& c) {
  const auto amount = uniform(c, 0);
  if (!amount) return any(c);
  c.to_undefined = shifted_right(c.undefined[1], *amount & 31);
}

void undefined_shift_right_signed(VectorCall& c) {
  const auto amount = uniform(c, 0);
  if (!amount) return any(c);
  c.to_undefined = shifted_right(c.undefined[1], *amount & 31);
  c.to_undefined.high |= c.undefined[1].high;
}

void undefined_shift_or(VectorCall& c) {
  const auto amount = uniform(c, 1);
  if (!amount) return any(c);
  c.to_undefined = shifted_left(c.undefined[0], *amount & 31);
  c.to_undefined |= c.undefined[2];
}

void undefined_field(VectorCall& c) {
  const auto offset = uniform(c, 1), width = uniform(c, 2);
  if (!offset || !width) return any(c);
  const std::uint32_t first = *offset & 31, last = first + (*width & 31);
  const std::uint64_t bits = (first < 16 ? c.undefined[0].low : 0) | (last > 16 ? c.undefined[0].high : 0);
  c.to_undefined = {bits, bits};
}

void undefined_insert(VectorCall& c) {
  const auto mask = uniform(c, 0);
  if (!mask) return any(c);
  c.to_undefined = masked(c.undefined[1], *mask);
  c.to_undefined |= masked(c.undefined[2], ~*mask);
}

void undefined_align(VectorCall& c) {
  const auto amount = uniform(c, 2);
  if (!amount) return any(c);
  const std::uint32_t n = *amount & 31;
  const Undefined &high = c.undefined[0], &low = c.undefined[1];
  if (n == 0) {
    c.to_undefined = low;
  } else if (n == 16) {
    c.to_undefined = {low.high, high.low};
  } else if (n < 16) {
    c.to_undefined = {low.any(), low.high | high.low};
  } else {
    c.to_undefined = {low.high | high.low, high.any()};
  }
}

void undefined_permute(VectorCall& c) {
  const auto selector = uniform(c, 2);
  if (!selector) return any(c);
  const std::uint64_t halves[] = {c.undefined[1].low, c.undefined[1].high, c.undefined[0].low, c.undefined[0].high};
  std::uint64_t result[2] = {0, 0};
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t select = *selector >> (8 * i) & 0xff;
    if (select < 8) result[i / 2] |= halves[select / 2];
    if (select >= 8 && select < 12) result[i / 2] |= halves[select - 8];
  }
  c.to_undefined = {result[0], result[1]};
}

void undefined_upwards(VectorCall& c) {
  Undefined low, high;
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) {
    low |= c.undefined[s];
    high |= c.undefined_high[s];
  }
  c.to_undefined = whole(low);
  high |= low;
  c.to_high_undefined = whole(high);
}

void undefined_by_register(VectorCall& c) {
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) {
    c.to_undefined |= c.undefined[s];
    c.to_high_undefined |= c.undefined_high[s];
  }
}

void undefined_select(VectorCall& c) {
  const std::uint64_t mask = c.mask[2];
  const std::uint64_t unknown = c.undefined[2].any();
  c.to_undefined = {(c.undefined[0].low & ~mask) | (c.undefined[1].low & mask) | unknown,
                    (c.undefined[0].high & ~mask) | (c.undefined[1].high & mask) | unknown};
}

}  // namespace heddle::amd::simulator
