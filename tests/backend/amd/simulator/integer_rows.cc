// 32-bit integers: arithmetic, shifts, bit fields.
#include <algorithm>
#include <bit>
#include <limits>

#include "backend/amd/simulator/undefined_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

using U = std::uint32_t;
using S = std::int32_t;
using U64 = std::uint64_t;
using S64 = std::int64_t;

U low24(U x) { return x & 0xffffff; }
S signed24(U x) { return static_cast<S>(x << 8) >> 8; }
WithCarry added(U a, U b, bool carry) {
  const U64 sum = static_cast<U64>(a) + b + carry;
  return {static_cast<U>(sum), sum >> 32 != 0};
}
WithCarry subtracted(U a, U b, bool borrow) {
  return {a - b - borrow, static_cast<U64>(a) < static_cast<U64>(b) + borrow};
}
U product_high(U a, U b) { return static_cast<U>(static_cast<U64>(a) * b >> 32); }
U signed_product_high(S a, S b) { return static_cast<U>(static_cast<U64>(static_cast<S64>(a) * b) >> 32); }
U field(U x, U offset, U width) {
  return width == 0 ? 0 : x >> (offset & 31) & (width >= 32 ? ~0u : (1u << width) - 1);
}
U signed_field(U x, U offset, U width) {
  offset &= 31, width &= 31;
  if (width == 0) return 0;
  const U value = static_cast<U>(static_cast<S>(x) >> offset);
  const U sign = 1u << (width - 1);
  return offset + width >= 32 ? value : ((value & ((1u << width) - 1)) ^ sign) - sign;
}

S saturated(S64 x) {
  return static_cast<S>(std::clamp<S64>(x, std::numeric_limits<S>::min(), std::numeric_limits<S>::max()));
}

template <class T>
T median(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

/// A byte of {a, b}: 0 to 3 are b's, 4 to 7 a's, 8 to 11 signs, 12 zero, above 0xff.
U permuted_byte(U64 both, U select) {
  if (select < 8) return static_cast<U>(both >> (8 * select)) & 0xff;
  if (select < 12) return (both >> (16 * (select - 8) + 15) & 1) ? 0xff : 0;
  return select == 12 ? 0 : 0xff;
}

U permuted(U a, U b, U selector) {
  const U64 both = static_cast<U64>(a) << 32 | b;
  U result = 0;
  for (U i = 0; i < 4; ++i) result |= permuted_byte(both, selector >> (8 * i) & 0xff) << (8 * i);
  return result;
}

U reversed(U x) {
  x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
  x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
  x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(x);
}

void count_lanes_below(VectorCall& c, bool high) {
  for (int l = 0; l < c.lanes; ++l) {
    const int before = high ? std::max(l - 32, 0) : std::min(l, 32);
    const U below = before >= 32 ? ~0u : (1u << before) - 1;
    c.to[l] = c.from[1][l] + static_cast<U>(std::popcount(c.from[0][l] & below));
  }
}

constexpr VectorRow kRows[] = {
    {"v_add_nc_u32", "i:ii", each_lane<[](U a, U b) { return a + b; }>},
    {"v_add_nc_i32", "i:ii", each_lane<[](U a, U b) { return a + b; }>},
    {"v_sub_nc_i32", "i:ii", each_lane<[](U a, U b) { return a - b; }>},
    {"v_sub_nc_u32", "i:ii", each_lane<[](U a, U b) { return a - b; }>},
    {"v_subrev_nc_u32", "i:ii", each_lane<[](U a, U b) { return b - a; }>},
    {"v_add_nc_u32_clamp", "i:ii", each_lane<[](U a, U b) { return a + b < a ? ~0u : a + b; }>},
    {"v_sub_nc_u32_clamp", "i:ii", each_lane<[](U a, U b) { return a < b ? 0u : a - b; }>},
    {"v_subrev_nc_u32_clamp", "i:ii", each_lane<[](U a, U b) { return b < a ? 0u : b - a; }>},
    {"v_add_nc_i32_clamp", "i:ii", each_lane<[](S a, S b) { return saturated(static_cast<S64>(a) + b); }>},
    {"v_sub_nc_i32_clamp", "i:ii", each_lane<[](S a, S b) { return saturated(static_cast<S64>(a) - b); }>},
    {"v_add_co_u32", "im:ii", each_lane<[](U a, U b) { return added(a, b, false); }>},
    {"v_sub_co_u32", "im:ii", each_lane<[](U a, U b) { return subtracted(a, b, false); }>},
    {"v_subrev_co_u32", "im:ii", each_lane<[](U a, U b) { return subtracted(b, a, false); }>},
    {"v_add_co_ci_u32", "im:iim", each_lane<[](U a, U b, Bit c) { return added(a, b, c.value); }>},
    {"v_sub_co_ci_u32", "im:iim", each_lane<[](U a, U b, Bit c) { return subtracted(a, b, c.value); }>},
    {"v_subrev_co_ci_u32", "im:iim", each_lane<[](U a, U b, Bit c) { return subtracted(b, a, c.value); }>},
    {"v_mul_lo_u32", "i:ii", each_lane<[](U a, U b) { return a * b; }>},
    {"v_mul_hi_u32", "i:ii", each_lane<[](U a, U b) { return product_high(a, b); }>},
    {"v_mul_hi_i32", "i:ii", each_lane<[](S a, S b) { return signed_product_high(a, b); }>},
    {"v_mul_u32_u24", "i:ii", each_lane<[](U a, U b) { return low24(a) * low24(b); }>},
    {"v_mul_i32_i24", "i:ii",
     each_lane<[](U a, U b) { return static_cast<U>(signed24(a)) * static_cast<U>(signed24(b)); }>},
    {"v_mul_hi_u32_u24", "i:ii", each_lane<[](U a, U b) { return product_high(low24(a), low24(b)); }>},
    {"v_mul_hi_i32_i24", "i:ii", each_lane<[](U a, U b) { return signed_product_high(signed24(a), signed24(b)); }>},
    {"v_mad_u32_u24", "i:iii", each_lane<[](U a, U b, U c) { return low24(a) * low24(b) + c; }>},
    {"v_mad_i32_i24", "i:iii",
     each_lane<[](U a, U b, U c) { return static_cast<U>(signed24(a)) * static_cast<U>(signed24(b)) + c; }>},
    {"v_min_u32", "i:ii", each_lane<[](U a, U b) { return std::min(a, b); }>},
    {"v_max_u32", "i:ii", each_lane<[](U a, U b) { return std::max(a, b); }>},
    {"v_min_i32", "i:ii", each_lane<[](S a, S b) { return std::min(a, b); }>},
    {"v_max_i32", "i:ii", each_lane<[](S a, S b) { return std::max(a, b); }>},
    {"v_min3_u32", "i:iii", each_lane<[](U a, U b, U c) { return std::min(std::min(a, b), c); }>},
    {"v_max3_u32", "i:iii", each_lane<[](U a, U b, U c) { return std::max(std::max(a, b), c); }>},
    {"v_med3_u32", "i:iii", each_lane<[](U a, U b, U c) { return median(a, b, c); }>},
    {"v_min3_i32", "i:iii", each_lane<[](S a, S b, S c) { return std::min(std::min(a, b), c); }>},
    {"v_max3_i32", "i:iii", each_lane<[](S a, S b, S c) { return std::max(std::max(a, b), c); }>},
    {"v_med3_i32", "i:iii", each_lane<[](S a, S b, S c) { return median(a, b, c); }>},
    {"v_maxmin_u32", "i:iii", each_lane<[](U a, U b, U c) { return std::min(std::max(a, b), c); }>},
    {"v_minmax_u32", "i:iii", each_lane<[](U a, U b, U c) { return std::max(std::min(a, b), c); }>},
    {"v_maxmin_i32", "i:iii", each_lane<[](S a, S b, S c) { return std::min(std::max(a, b), c); }>},
    {"v_minmax_i32", "i:iii", each_lane<[](S a, S b, S c) { return std::max(std::min(a, b), c); }>},
    {"v_add3_u32", "i:iii", each_lane<[](U a, U b, U c) { return a + b + c; }>},
    {"v_lshl_add_u32", "i:iii", each_lane<[](U a, U b, U c) { return (a << (b & 31)) + c; }>},
    {"v_add_lshl_u32", "i:iii", each_lane<[](U a, U b, U c) { return (a + b) << (c & 31); }>},
    {"v_xad_u32", "i:iii", each_lane<[](U a, U b, U c) { return (a ^ b) + c; }>},
    {"v_sad_u32", "i:iii", each_lane<[](U a, U b, U c) { return (a > b ? a - b : b - a) + c; }>},
    {"v_lshl_or_b32", "i:iii", each_lane<[](U a, U b, U c) { return (a << (b & 31)) | c; }>, undefined_shift_or},
    {"v_and_or_b32", "i:iii", each_lane<[](U a, U b, U c) { return (a & b) | c; }>, undefined_and_or},
    {"v_or3_b32", "i:iii", each_lane<[](U a, U b, U c) { return a | b | c; }>, undefined_by_half},
    {"v_xor3_b32", "i:iii", each_lane<[](U a, U b, U c) { return a ^ b ^ c; }>, undefined_by_half},
    {"v_and_b32", "i:ii", each_lane<[](U a, U b) { return a & b; }>, undefined_and},
    {"v_or_b32", "i:ii", each_lane<[](U a, U b) { return a | b; }>, undefined_by_half},
    {"v_xor_b32", "i:ii", each_lane<[](U a, U b) { return a ^ b; }>, undefined_by_half},
    {"v_xnor_b32", "i:ii", each_lane<[](U a, U b) { return ~(a ^ b); }>, undefined_by_half},
    {"v_not_b32", "i:i", each_lane<[](U a) { return ~a; }>, undefined_by_half},
    {"v_lshlrev_b32", "i:ii", each_lane<[](U a, U b) { return b << (a & 31); }>, undefined_shift_left},
    {"v_lshrrev_b32", "i:ii", each_lane<[](U a, U b) { return (b >> (a & 31)); }>, undefined_shift_right},
    {"v_ashrrev_i32", "i:ii", each_lane<[](U a, S b) { return (b >> (a & 31)); }>, undefined_shift_right_signed},
    {"v_bfe_u32", "i:iii", each_lane<[](U a, U b, U c) { return field(a, b, c & 31); }>, undefined_field},
    {"v_bfe_i32", "i:iii", each_lane<[](U a, U b, U c) { return signed_field(a, b, c); }>, undefined_field},
    {"v_bfi_b32", "i:iii", each_lane<[](U a, U b, U c) { return (a & b) | (~a & c); }>, undefined_insert},
    {"v_bfm_b32", "i:ii", each_lane<[](U a, U b) { return ((1u << (a & 31)) - 1) << (b & 31); }>},
    {"v_alignbit_b32", "i:iii",
     each_lane<[](U a, U b, U c) { return static_cast<U>((static_cast<U64>(a) << 32 | b) >> (c & 31)); }>,
     undefined_align},
    {"v_alignbyte_b32", "i:iii",
     each_lane<[](U a, U b, U c) { return static_cast<U>((static_cast<U64>(a) << 32 | b) >> (8 * (c & 3))); }>},
    {"v_perm_b32", "i:iii", each_lane<[](U a, U b, U c) { return permuted(a, b, c); }>, undefined_permute},
    {"v_bfrev_b32", "i:i", each_lane<[](U a) { return reversed(a); }>},
    {"v_bcnt_u32_b32", "i:ii", each_lane<[](U a, U b) { return static_cast<U>(std::popcount(a)) + b; }>},
    {"v_clz_i32_u32", "i:i", each_lane<[](U a) { return a ? std::countl_zero(a) : -1; }>},
    {"v_ctz_i32_b32", "i:i", each_lane<[](U a) { return a ? std::countr_zero(a) : -1; }>},
    {"v_cls_i32", "i:i", each_lane<[](S a) {
       const S leading = std::countl_zero(static_cast<U>(a < 0 ? ~a : a));
       return leading == 32 ? -1 : leading;
     }>},
    {"v_mbcnt_lo_u32_b32", "i:ii", [](VectorCall& c) { count_lanes_below(c, false); }},
    {"v_mbcnt_hi_u32_b32", "i:ii", [](VectorCall& c) { count_lanes_below(c, true); }},
};

}  // namespace

std::span<const VectorRow> integer_rows() { return kRows; }

}  // namespace heddle::amd::simulator
