// 16-bit integers, alone and in pairs.
#include <algorithm>

#include "backend/amd/simulator/undefined_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

using U16 = std::uint16_t;
using S16 = std::int16_t;

U16 narrowed(int value) { return static_cast<U16>(value); }
S16 sign_of(U16 value) { return static_cast<S16>(value); }

template <auto F>
PackedU16 both(PackedU16 a, PackedU16 b) {
  return {F(a.low, b.low), F(a.high, b.high)};
}

U16 plus(U16 a, U16 b) { return narrowed(a + b); }
U16 minus(U16 a, U16 b) { return narrowed(a - b); }
U16 times(U16 a, U16 b) { return narrowed(static_cast<int>(static_cast<std::uint32_t>(a) * b)); }
U16 left(U16 amount, U16 value) { return narrowed(value << (amount & 15)); }
U16 right(U16 amount, U16 value) { return narrowed(value >> (amount & 15)); }
U16 signed_right(U16 amount, U16 value) { return narrowed(sign_of(value) >> (amount & 15)); }
U16 smaller(U16 a, U16 b) { return std::min(a, b); }
U16 larger(U16 a, U16 b) { return std::max(a, b); }
U16 signed_smaller(U16 a, U16 b) { return narrowed(std::min(sign_of(a), sign_of(b))); }
U16 signed_larger(U16 a, U16 b) { return narrowed(std::max(sign_of(a), sign_of(b))); }

void undefined_low(VectorCall& c) {
  std::uint64_t low = 0;
  for (std::size_t s = 0; s < c.instruction.from_count; ++s) low |= c.undefined[s].low;
  c.to_undefined = {low, low};
}

constexpr VectorRow kRows[] = {
    {"v_add_nc_u16", "s:ss", each_lane<[](U16 a, U16 b) { return plus(a, b); }>, undefined_low},
    {"v_sub_nc_u16", "s:ss", each_lane<[](U16 a, U16 b) { return minus(a, b); }>, undefined_low},
    {"v_subrev_u16", "s:ss", each_lane<[](U16 a, U16 b) { return minus(b, a); }>, undefined_low},
    {"v_add_nc_i16", "s:ss", each_lane<[](U16 a, U16 b) { return plus(a, b); }>, undefined_low},
    {"v_sub_nc_i16", "s:ss", each_lane<[](U16 a, U16 b) { return minus(a, b); }>, undefined_low},
    {"v_mul_lo_u16", "s:ss", each_lane<[](U16 a, U16 b) { return times(a, b); }>, undefined_low},
    {"v_mad_u16", "s:sss", each_lane<[](U16 a, U16 b, U16 c) { return plus(times(a, b), c); }>, undefined_low},
    {"v_mad_i16", "s:sss", each_lane<[](U16 a, U16 b, U16 c) { return plus(times(a, b), c); }>, undefined_low},
    {"v_lshlrev_b16", "s:ss", each_lane<[](U16 a, U16 b) { return left(a, b); }>, undefined_low},
    {"v_lshrrev_b16", "s:ss", each_lane<[](U16 a, U16 b) { return right(a, b); }>, undefined_low},
    {"v_ashrrev_i16", "s:ss", each_lane<[](U16 a, U16 b) { return signed_right(a, b); }>, undefined_low},
    {"v_min_u16", "s:ss", each_lane<[](U16 a, U16 b) { return smaller(a, b); }>, undefined_low},
    {"v_max_u16", "s:ss", each_lane<[](U16 a, U16 b) { return larger(a, b); }>, undefined_low},
    {"v_min_i16", "s:ss", each_lane<[](U16 a, U16 b) { return signed_smaller(a, b); }>, undefined_low},
    {"v_max_i16", "s:ss", each_lane<[](U16 a, U16 b) { return signed_larger(a, b); }>, undefined_low},
    {"v_and_b16", "s:ss", each_lane<[](U16 a, U16 b) { return narrowed(a & b); }>, undefined_low},
    {"v_or_b16", "s:ss", each_lane<[](U16 a, U16 b) { return narrowed(a | b); }>, undefined_low},
    {"v_xor_b16", "s:ss", each_lane<[](U16 a, U16 b) { return narrowed(a ^ b); }>, undefined_low},
    {"v_not_b16", "s:s", each_lane<[](U16 a) { return narrowed(~a); }>, undefined_low},
    {"v_pk_add_u16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<plus>(a, b); }>, undefined_by_half},
    {"v_pk_add_i16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<plus>(a, b); }>, undefined_by_half},
    {"v_pk_sub_u16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<minus>(a, b); }>, undefined_by_half},
    {"v_pk_sub_i16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<minus>(a, b); }>, undefined_by_half},
    {"v_pk_mul_lo_u16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<times>(a, b); }>,
     undefined_by_half},
    {"v_pk_mad_u16", "q:qqq",
     each_lane<[](PackedU16 a, PackedU16 b, PackedU16 c) { return both<plus>(both<times>(a, b), c); }>,
     undefined_by_half},
    {"v_pk_lshlrev_b16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<left>(a, b); }>,
     undefined_by_half},
    {"v_pk_lshrrev_b16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<right>(a, b); }>,
     undefined_by_half},
    {"v_pk_ashrrev_i16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<signed_right>(a, b); }>,
     undefined_by_half},
    {"v_pk_min_u16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<smaller>(a, b); }>,
     undefined_by_half},
    {"v_pk_max_u16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<larger>(a, b); }>, undefined_by_half},
    {"v_pk_min_i16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<signed_smaller>(a, b); }>,
     undefined_by_half},
    {"v_pk_max_i16", "q:qq", each_lane<[](PackedU16 a, PackedU16 b) { return both<signed_larger>(a, b); }>,
     undefined_by_half},
};

}  // namespace

std::span<const VectorRow> narrow_integer_rows() { return kRows; }

}  // namespace heddle::amd::simulator
