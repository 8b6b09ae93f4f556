// Scalar instructions: a function of one or two values. Which bits of the result nothing wrote follows from the row's
// rule.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

struct ScalarCall {
  Execution& x;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;            ///< a third source, or what the destination held
  std::uint64_t a_undefined = 0;  ///< bits of a that nothing wrote
  bool scc = false;               ///< in and out
};

/// A row's effect on scc, and how undefined bits go through it.
enum class ScalarRule : std::uint8_t {
  kPlain,    ///< scc stays; any undefined bit of a source makes the whole result undefined
  kOwnScc,   ///< the function sets scc
  kNonZero,  ///< scc = result is not zero
  kAnd,      ///< bit by bit, scc = result is not zero
  kAndNot,
  kOr,
  kOrNot,
  kXor,
  kMove,      ///< bit by bit, scc stays
  kSelect,    ///< scc chooses a or b
  kCompare,   ///< no result but scc
  kSaveExec,  ///< the function changes exec and scc; the result is the old exec
};

struct ScalarRow {
  const char* name;
  const char* signature;  ///< as a VectorRow's; u and t are 16-bit constants of s_*k_*, without and with sign
  std::uint64_t (*run)(ScalarCall&);
  ScalarRule rule = ScalarRule::kPlain;
};

std::span<const ScalarRow> scalar_rows();        ///< integers
std::span<const ScalarRow> scalar_mask_rows();   ///< what changes exec, and comparisons
std::span<const ScalarRow> scalar_float_rows();  ///< gfx12

/// nullptr if no table has the name.
const ScalarRow* find_scalar_row(std::string_view name);

void execute_scalar(Execution& x, const Instruction& instruction);

}  // namespace heddle::amd::simulator
