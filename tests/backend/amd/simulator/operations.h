// Instructions that are neither a function of lanes (vector.h) nor of scalars (scalar.h): memory, lanes to scalars,
// matrices, control. Each is a function of the whole wave.
#pragma once

#include <span>
#include <string_view>

#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

/// An instruction's operands, in the order of the text: a letter each, results and sources apart by a colon. The
/// letters are those of a VectorRow's signature, and
///   *  registers, as many as the text names
///   -  something that is not looked at
struct OperationRow {
  const char* name;
  const char* signature;
  void (*execute)(Execution&, const Instruction&);
  Class counted_as;
  std::int32_t detail = 0;
};

std::span<const OperationRow> control_rows();
std::span<const OperationRow> lane_rows();
std::span<const OperationRow> scalar_load_rows();

/// nullptr if no table has the name.
const OperationRow* find_operation_row(std::string_view name);

/// Branches: fills what needs the program's addresses.
void execute_nothing(Execution& x, const Instruction& instruction);

}  // namespace heddle::amd::simulator
