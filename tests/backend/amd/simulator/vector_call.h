// A vector instruction at work: what its modifiers, its lanes and its undefined bits are computed from.
#pragma once

#include <array>
#include <cstdint>

#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

/// A vector instruction at work. Sources stand ready, modifiers applied; results go to rows that the caller merges into
/// the registers of the active lanes.
struct VectorCall {
  Execution& x;
  const Instruction& instruction;
  int lanes = 0;
  std::uint64_t exec = 0;  ///< the active lanes
  std::array<const std::uint32_t*, 5> from{};
  std::array<const std::uint32_t*, 5> from_high{};  ///< the second register of a 64-bit source
  std::array<std::uint64_t, 5> mask{};              ///< of a source that is a mask
  std::array<Undefined, 5> undefined{};
  std::array<Undefined, 5> undefined_high{};  ///< of the second register of a 64-bit source
  std::uint32_t* to = nullptr;
  std::uint32_t* to_high = nullptr;
  std::uint64_t to_mask = 0;
  Undefined to_undefined{};
  Undefined to_high_undefined{};
};

/// Which bits of the result are undefined, when any source has such bits: sets to_undefined, and to_high_undefined if
/// the result has two registers. nullptr stands for: the whole result where any half of any source is.
using UndefinedRule = void (*)(VectorCall&);

}  // namespace heddle::amd::simulator
