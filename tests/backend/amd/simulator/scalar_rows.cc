// Scalar integers.
#include <algorithm>
#include <bit>

#include "backend/amd/simulator/scalar.h"

namespace heddle::amd::simulator {
namespace {

using U64 = std::uint64_t;
using Call = ScalarCall&;

std::uint32_t low(U64 x) { return static_cast<std::uint32_t>(x); }
std::int32_t sign(U64 x) { return static_cast<std::int32_t>(x); }
U64 unsigned_of(std::int64_t x) { return static_cast<U64>(x); }

U64 add(Call c, bool carry) {
  const U64 sum = static_cast<U64>(low(c.a)) + low(c.b) + carry;
  c.scc = sum >> 32 != 0;
  return sum;
}
U64 subtract(Call c, bool borrow) {
  const U64 taken = static_cast<U64>(low(c.b)) + borrow;
  c.scc = low(c.a) < taken;
  return low(c.a) - taken;
}
U64 signed_add(Call c) {
  std::int32_t sum = 0;
  c.scc = __builtin_add_overflow(sign(c.a), sign(c.b), &sum);
  return unsigned_of(sum);
}
U64 signed_subtract(Call c) {
  std::int32_t difference = 0;
  c.scc = __builtin_sub_overflow(sign(c.a), sign(c.b), &difference);
  return unsigned_of(difference);
}
U64 shift_add(Call c, int amount) {
  const U64 sum = (static_cast<U64>(low(c.a)) << amount) + low(c.b);
  c.scc = sum >> 32 != 0;
  return sum;
}
U64 field(U64 value, U64 control, U64 bits, bool is_signed) {
  const U64 offset = control & (bits - 1), width = std::min(control >> 16 & 127, bits - offset);
  if (width == 0) return 0;
  const U64 shifted = value << (64 - offset - width);
  return is_signed ? unsigned_of(static_cast<std::int64_t>(shifted) >> (64 - width)) : shifted >> (64 - width);
}
U64 reversed(U64 x, int bits) {
  U64 result = 0;
  for (int i = 0; i < bits; ++i) result |= (x >> i & 1) << (bits - 1 - i);
  return result;
}
U64 first_or_none(bool none, int position) { return none ? ~0ull : static_cast<U64>(position); }
/// The index of the first bit, from the top, that differs from the sign.
U64 sign_bits(U64 value, int bits) {
  const U64 top = value << (64 - bits);
  const int leading = std::countl_zero(static_cast<std::int64_t>(top) < 0 ? ~top : top);
  return first_or_none(leading >= bits, leading);
}

constexpr ScalarRule kOwn = ScalarRule::kOwnScc, kNonZero = ScalarRule::kNonZero, kMove = ScalarRule::kMove;

constexpr ScalarRow kRows[] = {
    {"s_mov_b32", "i:i", [](Call c) -> U64 { return c.a; }, kMove},
    {"s_mov_b64", "l:l", [](Call c) -> U64 { return c.a; }, kMove},
    {"s_movk_i32", "i:t", [](Call c) -> U64 { return c.a; }, kMove},
    {"s_cmov_b32", "i:i=", [](Call c) -> U64 { return c.scc ? c.a : c.b; }, ScalarRule::kSelect},
    {"s_cmov_b64", "l:l=", [](Call c) -> U64 { return c.scc ? c.a : c.b; }, ScalarRule::kSelect},
    {"s_cselect_b32", "i:ii", [](Call c) -> U64 { return c.scc ? c.a : c.b; }, ScalarRule::kSelect},
    {"s_cselect_b64", "l:ll", [](Call c) -> U64 { return c.scc ? c.a : c.b; }, ScalarRule::kSelect},
    {"s_add_u32", "i:ii", [](Call c) -> U64 { return add(c, false); }, kOwn},
    {"s_add_co_u32", "i:ii", [](Call c) -> U64 { return add(c, false); }, kOwn},
    {"s_sub_u32", "i:ii", [](Call c) -> U64 { return subtract(c, false); }, kOwn},
    {"s_sub_co_u32", "i:ii", [](Call c) -> U64 { return subtract(c, false); }, kOwn},
    {"s_add_i32", "i:ii", signed_add, kOwn},
    {"s_add_co_i32", "i:ii", signed_add, kOwn},
    {"s_sub_i32", "i:ii", signed_subtract, kOwn},
    {"s_sub_co_i32", "i:ii", signed_subtract, kOwn},
    {"s_addk_i32", "i:=t", signed_add, kOwn},
    {"s_addk_co_i32", "i:=t", signed_add, kOwn},
    {"s_mulk_i32", "i:=t", [](Call c) -> U64 { return c.a * c.b; }},
    {"s_addc_u32", "i:ii", [](Call c) -> U64 { return add(c, c.scc); }, kOwn},
    {"s_add_co_ci_u32", "i:ii", [](Call c) -> U64 { return add(c, c.scc); }, kOwn},
    {"s_subb_u32", "i:ii", [](Call c) -> U64 { return subtract(c, c.scc); }, kOwn},
    {"s_sub_co_ci_u32", "i:ii", [](Call c) -> U64 { return subtract(c, c.scc); }, kOwn},
    {"s_add_nc_u64", "l:ll", [](Call c) -> U64 { return c.a + c.b; }},
    {"s_add_u64", "l:ll", [](Call c) -> U64 { return c.a + c.b; }},
    {"s_sub_nc_u64", "l:ll", [](Call c) -> U64 { return c.a - c.b; }},
    {"s_sub_u64", "l:ll", [](Call c) -> U64 { return c.a - c.b; }},
    {"s_mul_u64", "l:ll", [](Call c) -> U64 { return c.a * c.b; }},
    {"s_mul_i32", "i:ii", [](Call c) -> U64 { return c.a * c.b; }},
    {"s_mul_hi_u32", "i:ii", [](Call c) -> U64 { return static_cast<U64>(low(c.a)) * low(c.b) >> 32; }},
    {"s_mul_hi_i32", "i:ii",
     [](Call c) -> U64 { return unsigned_of(static_cast<std::int64_t>(sign(c.a)) * sign(c.b) >> 32); }},
    {"s_min_i32", "i:ii",
     [](Call c) -> U64 {
       c.scc = sign(c.a) < sign(c.b);
       return c.scc ? c.a : c.b;
     },
     kOwn},
    {"s_max_i32", "i:ii",
     [](Call c) -> U64 {
       c.scc = sign(c.a) > sign(c.b);
       return c.scc ? c.a : c.b;
     },
     kOwn},
    {"s_min_u32", "i:ii",
     [](Call c) -> U64 {
       c.scc = low(c.a) < low(c.b);
       return c.scc ? c.a : c.b;
     },
     kOwn},
    {"s_max_u32", "i:ii",
     [](Call c) -> U64 {
       c.scc = low(c.a) > low(c.b);
       return c.scc ? c.a : c.b;
     },
     kOwn},
    {"s_abs_i32", "i:i", [](Call c) -> U64 { return sign(c.a) < 0 ? 0 - c.a : c.a; }, kNonZero},
    {"s_absdiff_i32", "i:ii", [](Call c) -> U64 { return sign(c.a) > sign(c.b) ? c.a - c.b : c.b - c.a; }, kNonZero},
    {"s_lshl_b32", "i:ii", [](Call c) -> U64 { return c.a << (c.b & 31); }, kNonZero},
    {"s_lshr_b32", "i:ii", [](Call c) -> U64 { return c.a >> (c.b & 31); }, kNonZero},
    {"s_ashr_i32", "i:ii", [](Call c) -> U64 { return unsigned_of(sign(c.a) >> (c.b & 31)); }, kNonZero},
    {"s_lshl_b64", "l:li", [](Call c) -> U64 { return c.a << (c.b & 63); }, kNonZero},
    {"s_lshr_b64", "l:li", [](Call c) -> U64 { return c.a >> (c.b & 63); }, kNonZero},
    {"s_ashr_i64", "l:li", [](Call c) -> U64 { return unsigned_of(static_cast<std::int64_t>(c.a) >> (c.b & 63)); },
     kNonZero},
    {"s_lshl1_add_u32", "i:ii", [](Call c) -> U64 { return shift_add(c, 1); }, kOwn},
    {"s_lshl2_add_u32", "i:ii", [](Call c) -> U64 { return shift_add(c, 2); }, kOwn},
    {"s_lshl3_add_u32", "i:ii", [](Call c) -> U64 { return shift_add(c, 3); }, kOwn},
    {"s_lshl4_add_u32", "i:ii", [](Call c) -> U64 { return shift_add(c, 4); }, kOwn},
    {"s_bfe_u32", "i:ii", [](Call c) -> U64 { return field(low(c.a), c.b, 32, false); }, kNonZero},
    {"s_bfe_i32", "i:ii", [](Call c) -> U64 { return field(low(c.a), c.b, 32, true); }, kNonZero},
    {"s_bfe_u64", "l:li", [](Call c) -> U64 { return field(c.a, c.b, 64, false); }, kNonZero},
    {"s_bfe_i64", "l:li", [](Call c) -> U64 { return field(c.a, c.b, 64, true); }, kNonZero},
    {"s_bfm_b32", "i:ii", [](Call c) -> U64 { return ((1ull << (c.a & 31)) - 1) << (c.b & 31); }},
    {"s_bfm_b64", "l:ii", [](Call c) -> U64 { return ((1ull << (c.a & 63)) - 1) << (c.b & 63); }},
    {"s_pack_ll_b32_b16", "i:ii", [](Call c) -> U64 { return (c.a & 0xffff) | (c.b & 0xffff) << 16; }},
    {"s_pack_lh_b32_b16", "i:ii", [](Call c) -> U64 { return (c.a & 0xffff) | (c.b & 0xffff0000); }},
    {"s_pack_hh_b32_b16", "i:ii", [](Call c) -> U64 { return (c.a >> 16 & 0xffff) | (c.b & 0xffff0000); }},
    {"s_pack_hl_b32_b16", "i:ii", [](Call c) -> U64 { return (c.a >> 16 & 0xffff) | (c.b & 0xffff) << 16; }},
    {"s_sext_i32_i8", "i:i", [](Call c) -> U64 { return unsigned_of(static_cast<std::int8_t>(c.a)); }},
    {"s_sext_i32_i16", "i:i", [](Call c) -> U64 { return unsigned_of(static_cast<std::int16_t>(c.a)); }},
    {"s_brev_b32", "i:i", [](Call c) -> U64 { return reversed(c.a, 32); }},
    {"s_brev_b64", "l:l", [](Call c) -> U64 { return reversed(c.a, 64); }},
    {"s_bcnt0_i32_b32", "i:i", [](Call c) -> U64 { return static_cast<U64>(std::popcount(~low(c.a))); }, kNonZero},
    {"s_bcnt0_i32_b64", "i:l", [](Call c) -> U64 { return static_cast<U64>(std::popcount(~c.a)); }, kNonZero},
    {"s_bcnt1_i32_b32", "i:i", [](Call c) -> U64 { return static_cast<U64>(std::popcount(low(c.a))); }, kNonZero},
    {"s_bcnt1_i32_b64", "i:l", [](Call c) -> U64 { return static_cast<U64>(std::popcount(c.a)); }, kNonZero},
    {"s_ctz_i32_b32", "i:i", [](Call c) -> U64 { return first_or_none(low(c.a) == 0, std::countr_zero(low(c.a))); }},
    {"s_ctz_i32_b64", "i:l", [](Call c) -> U64 { return first_or_none(c.a == 0, std::countr_zero(c.a)); }},
    {"s_clz_i32_u32", "i:i", [](Call c) -> U64 { return first_or_none(low(c.a) == 0, std::countl_zero(low(c.a))); }},
    {"s_clz_i32_u64", "i:l", [](Call c) -> U64 { return first_or_none(c.a == 0, std::countl_zero(c.a)); }},
    {"s_cls_i32", "i:i", [](Call c) -> U64 { return sign_bits(c.a, 32); }},
    {"s_cls_i32_i64", "i:l", [](Call c) -> U64 { return sign_bits(c.a, 64); }},
    {"s_bitset0_b32", "i:i=", [](Call c) -> U64 { return c.b & ~(1ull << (c.a & 31)); }},
    {"s_bitset1_b32", "i:i=", [](Call c) -> U64 { return c.b | 1ull << (c.a & 31); }},
    {"s_bitset0_b64", "l:i=", [](Call c) -> U64 { return c.b & ~(1ull << (c.a & 63)); }},
    {"s_bitset1_b64", "l:i=", [](Call c) -> U64 { return c.b | 1ull << (c.a & 63); }},
};

}  // namespace

std::span<const ScalarRow> scalar_rows() { return kRows; }

}  // namespace heddle::amd::simulator
