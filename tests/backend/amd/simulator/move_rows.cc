// Moves: between registers, by a mask, and between the lanes of a wave. v_readlane and its like, whose results are
// scalar, are in lane_operations.cc.
#include <algorithm>

#include "backend/amd/simulator/undefined_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

using U = std::uint32_t;

void undefined_pk_mov(VectorCall& c) {
  const std::uint8_t chosen = c.instruction.op_sel;
  c.to_undefined = chosen & 1 ? c.undefined_high[0] : c.undefined[0];
  c.to_high_undefined = chosen & 2 ? c.undefined_high[1] : c.undefined[1];
}

/// The low register of the result from the first source, the high one from the second; op_sel chooses which of theirs.
void pk_mov(VectorCall& c) {
  const Instruction& i = c.instruction;
  std::copy_n(i.op_sel & 1 ? c.from_high[0] : c.from[0], c.lanes, c.to);
  std::copy_n(i.op_sel & 2 ? c.from_high[1] : c.from[1], c.lanes, c.to_high);
}

/// v_permlane16, v_permlanex16: each lane of a row of 16 reads the lane that four bits of the selectors name, of its
/// own row or of the other. Lanes that exec leaves out are read as they are if op_sel's first bit (fetch inactive) is
/// set; else they give 0 with the second bit (bound control), and the old value without.
template <bool kOtherRow>
void permute_rows(VectorCall& c) {
  const bool fetch_inactive = c.instruction.op_sel & 1, bound_control = c.instruction.op_sel & 2;
  const Row& old = c.x.wave.v[static_cast<std::size_t>(c.instruction.to[0].index)];
  Undefined undefined;
  for (int l = 0; l < c.lanes; ++l) {
    const int at = l & 15;
    const U selector = at < 8 ? c.from[1][l] : c.from[2][l];
    const int row = kOtherRow ? (l & ~15) ^ 16 : l & ~15;
    const int from = row + static_cast<int>(selector >> (4 * (at & 7)) & 15);
    if (fetch_inactive || (c.exec >> from & 1)) {
      c.to[l] = c.from[0][from];
      undefined.low |= (c.undefined[0].low >> from & 1) << l;
      undefined.high |= (c.undefined[0].high >> from & 1) << l;
    } else {
      c.to[l] = bound_control ? 0 : old[l];
    }
  }
  c.undefined[0] = undefined;
}

/// v_permlane64: the halves of a wave of 64 change places.
void swap_halves(VectorCall& c) {
  for (int l = 0; l < c.lanes; ++l) c.to[l] = c.from[0][c.lanes == 64 ? l ^ 32 : l];
  const auto swapped = [&](std::uint64_t bits) { return c.lanes == 64 ? bits >> 32 | bits << 32 : bits; };
  c.undefined[0] = {swapped(c.undefined[0].low), swapped(c.undefined[0].high)};
}

constexpr VectorRow kRows[] = {
    {"v_mov_b32", "i:i", each_lane<[](U a) { return a; }>, undefined_by_half},
    {"v_accvgpr_read_b32", "i:i", each_lane<[](U a) { return a; }>, undefined_by_half},
    {"v_accvgpr_write_b32", "i:i", each_lane<[](U a) { return a; }>, undefined_by_half},
    {"v_accvgpr_mov_b32", "i:i", each_lane<[](U a) { return a; }>, undefined_by_half},
    {"v_cndmask_b32", "f:ffm", each_lane<[](U a, U b, Bit chosen) { return chosen.value ? b : a; }>, undefined_select},
    {"v_cndmask_b16", "s:ssm", each_lane<[](U a, U b, Bit chosen) { return chosen.value ? b : a; }>, undefined_select},
    {"v_mov_b16", "s:s", each_lane<[](U a) { return a & 0xffff; }>},
    {"v_pk_mov_b32", "l:ll", pk_mov, undefined_pk_mov},
    {"v_permlane16_b32", "i:iii", permute_rows<false>, undefined_by_half},
    {"v_permlanex16_b32", "i:iii", permute_rows<true>, undefined_by_half},
    {"v_permlane64_b32", "i:i", swap_halves, undefined_by_half},
};

}  // namespace

std::span<const VectorRow> move_rows() { return kRows; }

}  // namespace heddle::amd::simulator
