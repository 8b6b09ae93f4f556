#include "backend/amd/simulator/access.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "backend/amd/simulator/float_rules.h"
#include "backend/amd/simulator/half.h"

namespace heddle::amd::simulator {

std::optional<Access> parse_access(std::string_view suffix) {
  static const std::unordered_map<std::string_view, Access> known = {
      {"u8", {1}},
      {"i8", {1, true}},
      {"u16", {2}},
      {"i16", {2, true}},
      {"b8", {1}},
      {"b16", {2}},
      {"b32", {4}},
      {"b64", {8}},
      {"b96", {12}},
      {"b128", {16}},
      {"ubyte", {1}},
      {"sbyte", {1, true}},
      {"ushort", {2}},
      {"sshort", {2, true}},
      {"byte", {1}},
      {"short", {2}},
      {"dword", {4}},
      {"dwordx2", {8}},
      {"dwordx3", {12}},
      {"dwordx4", {16}},
      {"d16_u8", {1, false, true}},
      {"d16_i8", {1, true, true}},
      {"d16_b16", {2, false, true}},
      {"d16_hi_u8", {1, false, true, true}},
      {"d16_hi_i8", {1, true, true, true}},
      {"d16_hi_b16", {2, false, true, true}},
      {"d16_hi_b8", {1, false, true, true}},
      {"ubyte_d16", {1, false, true}},
      {"sbyte_d16", {1, true, true}},
      {"short_d16", {2, false, true}},
      {"ubyte_d16_hi", {1, false, true, true}},
      {"sbyte_d16_hi", {1, true, true, true}},
      {"short_d16_hi", {2, false, true, true}},
      {"byte_d16_hi", {1, false, true, true}},
      {"u8_d16", {1, false, true}},
      {"i8_d16", {1, true, true}},
      {"u16_d16", {2, false, true}},
      {"u8_d16_hi", {1, false, true, true}},
      {"i8_d16_hi", {1, true, true, true}},
      {"u16_d16_hi", {2, false, true, true}},
      {"b8_d16_hi", {1, false, true, true}},
      {"b16_d16_hi", {2, false, true, true}},
  };
  const auto found = known.find(suffix);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

namespace {

void set_bit(std::uint64_t& mask, int lane, bool value) {
  mask = (mask & ~(1ull << lane)) | static_cast<std::uint64_t>(value) << lane;
}

}  // namespace

void put_loaded(Wave& wave, int register_index, int lane, const Access& access, const LaneBytes& loaded) {
  auto index = static_cast<std::size_t>(register_index);
  if (access.bytes >= 4) {
    for (int i = 0; i < access.bytes; i += 4, ++index) {
      std::memcpy(&wave.v[index][lane], loaded.bytes.data() + i, 4);
      const std::uint32_t undefined = loaded.undefined >> i;
      set_bit(wave.undefined[index].low, lane, undefined & 3);
      set_bit(wave.undefined[index].high, lane, undefined & 12);
    }
    return;
  }
  std::uint32_t value = loaded.bytes[0] | (access.bytes == 2 ? loaded.bytes[1] << 8 : 0);
  if (access.sign_extend) {
    const std::uint32_t sign = access.bytes == 1 ? 0x80 : 0x8000;
    value = (value ^ sign) - sign;
  }
  const bool undefined = loaded.undefined != 0;
  std::uint32_t& cell = wave.v[index][lane];
  if (!access.half) {
    cell = value;
    set_bit(wave.undefined[index].low, lane, undefined);
    set_bit(wave.undefined[index].high, lane, undefined && access.sign_extend);
  } else if (access.high) {
    cell = (cell & 0xffff) | value << 16;
    set_bit(wave.undefined[index].high, lane, undefined);
  } else {
    cell = (cell & 0xffff0000) | (value & 0xffff);
    set_bit(wave.undefined[index].low, lane, undefined);
  }
}

LaneBytes take_stored(const Wave& wave, int register_index, int lane, const Access& access) {
  LaneBytes stored;
  auto index = static_cast<std::size_t>(register_index);
  if (access.bytes >= 4) {
    for (int i = 0; i < access.bytes; i += 4, ++index) {
      std::memcpy(stored.bytes.data() + i, &wave.v[index].lane[static_cast<std::size_t>(lane)], 4);
      const Undefined& u = wave.undefined[index];
      stored.undefined |= static_cast<std::uint32_t>((u.low >> lane & 1) * 3 | (u.high >> lane & 1) * 12) << i;
    }
    return stored;
  }
  const std::uint32_t value = wave.v[index][lane] >> (access.high ? 16 : 0);
  stored.bytes[0] = static_cast<std::uint8_t>(value);
  stored.bytes[1] = static_cast<std::uint8_t>(value >> 8);
  const Undefined& u = wave.undefined[index];
  if ((access.high ? u.high : u.low) >> lane & 1) stored.undefined = (1u << access.bytes) - 1;
  return stored;
}

std::optional<Atomic> parse_atomic(std::string_view suffix) {
  using Op = AtomicOp;
  static const std::unordered_map<std::string_view, Atomic> known = {
      {"swap", {Op::kSwap}},
      {"swap_b32", {Op::kSwap}},
      {"swap_b64", {Op::kSwap, 8}},
      {"swap_x2", {Op::kSwap, 8}},
      {"wrxchg_b32", {Op::kSwap}},
      {"wrxchg_b64", {Op::kSwap, 8}},
      {"storexchg_b32", {Op::kSwap}},
      {"storexchg_b64", {Op::kSwap, 8}},
      {"cmpswap", {Op::kCompareSwap}},
      {"cmpswap_b32", {Op::kCompareSwap}},
      {"cmpswap_b64", {Op::kCompareSwap, 8}},
      {"cmpswap_x2", {Op::kCompareSwap, 8}},
      {"cmpst_b32", {Op::kCompareSwap}},
      {"cmpst_b64", {Op::kCompareSwap, 8}},
      {"cmpstore_b32", {Op::kCompareSwap}},
      {"cmpstore_b64", {Op::kCompareSwap, 8}},
      {"add", {Op::kAdd}},
      {"add_u32", {Op::kAdd}},
      {"add_u64", {Op::kAdd, 8}},
      {"add_x2", {Op::kAdd, 8}},
      {"sub", {Op::kSub}},
      {"sub_u32", {Op::kSub}},
      {"sub_u64", {Op::kSub, 8}},
      {"sub_x2", {Op::kSub, 8}},
      {"smin", {Op::kMin}},
      {"min_i32", {Op::kMin}},
      {"min_i64", {Op::kMin, 8}},
      {"smin_x2", {Op::kMin, 8}},
      {"smax", {Op::kMax}},
      {"max_i32", {Op::kMax}},
      {"max_i64", {Op::kMax, 8}},
      {"smax_x2", {Op::kMax, 8}},
      {"umin", {Op::kUMin}},
      {"min_u32", {Op::kUMin}},
      {"min_u64", {Op::kUMin, 8}},
      {"umin_x2", {Op::kUMin, 8}},
      {"umax", {Op::kUMax}},
      {"max_u32", {Op::kUMax}},
      {"max_u64", {Op::kUMax, 8}},
      {"umax_x2", {Op::kUMax, 8}},
      {"and", {Op::kAnd}},
      {"and_b32", {Op::kAnd}},
      {"and_b64", {Op::kAnd, 8}},
      {"and_x2", {Op::kAnd, 8}},
      {"or", {Op::kOr}},
      {"or_b32", {Op::kOr}},
      {"or_b64", {Op::kOr, 8}},
      {"or_x2", {Op::kOr, 8}},
      {"xor", {Op::kXor}},
      {"xor_b32", {Op::kXor}},
      {"xor_b64", {Op::kXor, 8}},
      {"xor_x2", {Op::kXor, 8}},
      {"inc", {Op::kIncrement}},
      {"inc_u32", {Op::kIncrement}},
      {"inc_u64", {Op::kIncrement, 8}},
      {"inc_x2", {Op::kIncrement, 8}},
      {"dec", {Op::kDecrement}},
      {"dec_u32", {Op::kDecrement}},
      {"dec_u64", {Op::kDecrement, 8}},
      {"dec_x2", {Op::kDecrement, 8}},
      {"add_f32", {Op::kFAdd}},
      {"add_f64", {Op::kFAdd, 8}},
      {"min_f32", {Op::kFMin}},
      {"max_f32", {Op::kFMax}},
      {"min_num_f32", {Op::kFMin}},
      {"max_num_f32", {Op::kFMax}},
      {"min_f64", {Op::kFMin, 8}},
      {"max_f64", {Op::kFMax, 8}},
      {"pk_add_f16", {Op::kPackedAddF16}},
      {"pk_add_bf16", {Op::kPackedAddBf16}},
  };
  const auto found = known.find(suffix);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

namespace {

template <class Unsigned, class Signed, class Float>
std::uint64_t updated_as(AtomicOp op, Unsigned old, Unsigned value, Unsigned compared) {
  const auto a = std::bit_cast<Float>(old), b = std::bit_cast<Float>(value);
  switch (op) {
    case AtomicOp::kSwap:
      return value;
    case AtomicOp::kCompareSwap:
      return old == compared ? value : old;
    case AtomicOp::kAdd:
      return old + value;
    case AtomicOp::kSub:
      return old - value;
    case AtomicOp::kMin:
      return static_cast<Signed>(value) < static_cast<Signed>(old) ? value : old;
    case AtomicOp::kMax:
      return static_cast<Signed>(value) > static_cast<Signed>(old) ? value : old;
    case AtomicOp::kUMin:
      return std::min(old, value);
    case AtomicOp::kUMax:
      return std::max(old, value);
    case AtomicOp::kAnd:
      return old & value;
    case AtomicOp::kOr:
      return old | value;
    case AtomicOp::kXor:
      return old ^ value;
    case AtomicOp::kIncrement:
      return old >= value ? 0 : old + 1;
    case AtomicOp::kDecrement:
      return old == 0 || old > value ? value : old - 1;
    case AtomicOp::kFAdd:
      return std::bit_cast<Unsigned>(a + b);
    case AtomicOp::kFMin:
      return std::bit_cast<Unsigned>(number_min(a, b));
    case AtomicOp::kFMax:
      return std::bit_cast<Unsigned>(number_max(a, b));
    case AtomicOp::kPackedAddF16:
    case AtomicOp::kPackedAddBf16:
      break;
  }
  return 0;
}

}  // namespace

std::uint64_t updated(const Atomic& atomic, std::uint64_t old, std::uint64_t operand, std::uint64_t compared) {
  const auto o = static_cast<std::uint32_t>(old), v = static_cast<std::uint32_t>(operand);
  if (atomic.op == AtomicOp::kPackedAddF16) {
    return float_to_half(half_to_float(o & 0xffff) + half_to_float(v & 0xffff)) |
           float_to_half(half_to_float(o >> 16) + half_to_float(v >> 16)) << 16;
  }
  if (atomic.op == AtomicOp::kPackedAddBf16) {
    return float_to_bfloat(bfloat_to_float(o & 0xffff) + bfloat_to_float(v & 0xffff)) |
           float_to_bfloat(bfloat_to_float(o >> 16) + bfloat_to_float(v >> 16)) << 16;
  }
  if (atomic.bytes == 8) return updated_as<std::uint64_t, std::int64_t, double>(atomic.op, old, operand, compared);
  return static_cast<std::uint32_t>(
      updated_as<std::uint32_t, std::int32_t, float>(atomic.op, o, v, static_cast<std::uint32_t>(compared)));
}

}  // namespace heddle::amd::simulator
