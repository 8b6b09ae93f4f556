// Which halves of a result are undefined, for the operations that compilers build 16-bit pairs with. Constants decide
// much: v_and_b32 with 0xffff has a defined high half whatever the source holds.
#pragma once

#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {

void undefined_by_half(VectorCall& c);  ///< low from low, high from high: moves, or, xor, not, packed operations
void undefined_and(VectorCall& c);
void undefined_and_or(VectorCall& c);
void undefined_shift_left(VectorCall& c);  ///< sources: amount, value
void undefined_shift_right(VectorCall& c);
void undefined_shift_right_signed(VectorCall& c);
void undefined_shift_or(VectorCall& c);  ///< v_lshl_or_b32
void undefined_field(VectorCall& c);     ///< v_bfe
void undefined_insert(VectorCall& c);    ///< v_bfi
void undefined_align(VectorCall& c);     ///< v_alignbit
void undefined_permute(VectorCall& c);   ///< v_perm
void undefined_upwards(
    VectorCall& c);  ///< 64-bit sums, products and shifts to the left: the low register from low registers
void undefined_by_register(VectorCall& c);  ///< the low register from low registers, the high one from high ones
void undefined_select(VectorCall& c);       ///< v_cndmask: of the source that a lane selects

}  // namespace heddle::amd::simulator
