// The bytes that a memory instruction moves for one lane, from its name: `d16_hi_u8` is one byte, into the high half.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

struct Access {
  std::uint8_t bytes = 0;
  bool sign_extend = false;
  bool half = false;  ///< d16: a load fills one half of the register and leaves the other; a store takes the named half
  bool high = false;
  std::int32_t packed() const { return bytes | sign_extend << 8 | half << 9 | high << 10; }
  static Access unpacked(std::int32_t bits) {
    return {static_cast<std::uint8_t>(bits & 0xff), (bits >> 8 & 1) != 0, (bits >> 9 & 1) != 0, (bits >> 10 & 1) != 0};
  }
};

/// `suffix` is what follows `global_load_` and its like, in the words of any generation. nullopt if it is no access.
std::optional<Access> parse_access(std::string_view suffix);

/// One lane's bytes of an access, and which of them nothing wrote.
struct LaneBytes {
  std::array<std::uint8_t, 16> bytes{};
  std::uint32_t undefined = 0;  ///< bit i: byte i
};

/// Puts what a lane loaded into its registers.
void put_loaded(Wave& wave, int register_index, int lane, const Access& access, const LaneBytes& loaded);
/// Takes the bytes that a lane stores from its registers.
LaneBytes take_stored(const Wave& wave, int register_index, int lane, const Access& access);

/// The operation of an atomic, as its name says.
enum class AtomicOp : std::uint8_t {
  kSwap,
  kCompareSwap,
  kAdd,
  kSub,
  kMin,
  kMax,
  kUMin,
  kUMax,
  kAnd,
  kOr,
  kXor,
  kIncrement,
  kDecrement,
  kFAdd,
  kFMin,
  kFMax,
  kPackedAddF16,
  kPackedAddBf16
};

struct Atomic {
  AtomicOp op = AtomicOp::kSwap;
  std::uint8_t bytes = 4;
  std::int32_t packed() const { return static_cast<std::int32_t>(op) | bytes << 8; }
  static Atomic unpacked(std::int32_t bits) {
    return {static_cast<AtomicOp>(bits & 0xff), static_cast<std::uint8_t>(bits >> 8)};
  }
};

/// `suffix` is what follows `global_atomic_` or `ds_`, without `rtn_`.
std::optional<Atomic> parse_atomic(std::string_view suffix);

/// The new value of a memory cell.
std::uint64_t updated(const Atomic& atomic, std::uint64_t old, std::uint64_t operand, std::uint64_t compared);

}  // namespace heddle::amd::simulator
