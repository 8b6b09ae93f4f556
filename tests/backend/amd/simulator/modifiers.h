// Modifiers of a vector instruction's operands: neg, abs, op_sel, DPP, SDWA, clamp, omod.
#pragma once

#include "backend/amd/simulator/vector_call.h"

namespace heddle::amd::simulator {

/// Changes the sources of `c`, their undefined lanes, and exec (DPP switches lanes off); changed rows stand in the
/// given ones.
void apply_source_modifiers(VectorCall& c, Row* rows, Row* high_rows);

/// Changes the result rows of `c` as the destination and the modifiers ask.
void apply_result_modifiers(VectorCall& c, const Operand& operand);

}  // namespace heddle::amd::simulator
