// s_load: constants and arguments of a wave. Results come back in any order.
#include <fmt/format.h>

#include "backend/amd/simulator/operations.h"

namespace heddle::amd::simulator {
namespace {

/// from[0]: base, from[1]: an offset in a register (or none); i.offset is added. `detail` is the number of bytes,
/// negative for sign extension; less than 4 fill one register.
void load(Execution& x, const Instruction& i) {
  const ScalarValue base = read_scalar(x.wave, i.from[0]);
  const ScalarValue register_offset =
      i.from[1].kind == Operand::Kind::kNone ? ScalarValue{} : read_scalar(x.wave, i.from[1]);
  if ((base.undefined | register_offset.undefined) != 0) {
    x.found(Fault::kUndefined, "the address holds bits that nothing wrote");
    return;
  }
  const bool sign = i.detail < 0;
  const auto bytes = static_cast<std::uint32_t>(sign ? -i.detail : i.detail);
  const std::uint64_t align = bytes < 4 ? bytes : 4;
  const std::uint64_t address =
      (base.bits + register_offset.bits + static_cast<std::uint64_t>(i.offset)) / align * align;
  const Memory::Buffer* buffer = x.memory.find(address, bytes);
  if (!buffer) {
    x.found(Fault::kBounds, fmt::format("{} bytes: {}", bytes, x.memory.location_of(address)));
    return;
  }
  const std::size_t at = address - buffer->begin;
  for (std::uint32_t first = 0; first < bytes; first += 4) {
    std::uint32_t value = 0, unknown = 0;
    for (std::uint32_t b = first; b < bytes && b < first + 4; ++b) {
      value |= static_cast<std::uint32_t>(buffer->bytes[at + b]) << (8 * (b - first));
      if (buffer->writer[at + b] == Memory::kNobody) unknown |= 0xffu << (8 * (b - first));
    }
    if (sign) value = bytes == 1 ? (value ^ 0x80) - 0x80 : (value ^ 0x8000) - 0x8000;
    const Operand to{
        .kind = Operand::Kind::kScalar, .count = 1, .index = static_cast<std::int16_t>(i.to[0].index + first / 4)};
    write_scalar(x, to, {value, unknown});
  }
}

constexpr Class kLoad = Class::kScalarLoad;

constexpr OperationRow kRows[] = {
    {"s_load_b32", "*:*o", load, kLoad, 4},   {"s_load_b64", "*:*o", load, kLoad, 8},
    {"s_load_b96", "*:*o", load, kLoad, 12},  {"s_load_b128", "*:*o", load, kLoad, 16},
    {"s_load_b256", "*:*o", load, kLoad, 32}, {"s_load_b512", "*:*o", load, kLoad, 64},
    {"s_load_u8", "*:*o", load, kLoad, 1},    {"s_load_i8", "*:*o", load, kLoad, -1},
    {"s_load_u16", "*:*o", load, kLoad, 2},   {"s_load_i16", "*:*o", load, kLoad, -2},
};

}  // namespace

std::span<const OperationRow> scalar_load_rows() { return kRows; }

}  // namespace heddle::amd::simulator
