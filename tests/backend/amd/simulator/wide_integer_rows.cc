// 64-bit integers.
#include "backend/amd/simulator/undefined_rules.h"
#include "backend/amd/simulator/vector.h"

namespace heddle::amd::simulator {
namespace {

using U = std::uint32_t;
using S = std::int32_t;
using U64 = std::uint64_t;
using S64 = std::int64_t;

WideWithCarry multiply_added(U a, U b, U64 c) {
  const U64 product = static_cast<U64>(a) * b, sum = product + c;
  return {sum, sum < product};
}

WideWithCarry signed_multiply_added(S a, S b, S64 c) {
  const S64 product = static_cast<S64>(a) * b;
  S64 sum = 0;
  const bool overflow = __builtin_add_overflow(product, c, &sum);
  return {static_cast<U64>(sum), overflow};
}

constexpr VectorRow kRows[] = {
    {"v_mad_u64_u32", "lm:iil", each_lane<[](U a, U b, U64 c) { return multiply_added(a, b, c); }>, undefined_upwards},
    {"v_mad_i64_i32", "lm:iil", each_lane<[](S a, S b, S64 c) { return signed_multiply_added(a, b, c); }>,
     undefined_upwards},
    {"v_lshlrev_b64", "l:il", each_lane<[](U a, U64 b) { return b << (a & 63); }>, undefined_upwards},
    {"v_lshrrev_b64", "l:il", each_lane<[](U a, U64 b) { return (b >> (a & 63)); }>},
    {"v_ashrrev_i64", "l:il", each_lane<[](U a, S64 b) { return (b >> (a & 63)); }>},
    {"v_lshl_add_u64", "l:lil", each_lane<[](U64 a, U b, U64 c) { return (a << (b & 7)) + c; }>, undefined_upwards},
    {"v_mov_b64", "l:l", each_lane<[](U64 a) { return a; }>, undefined_by_register},
};

}  // namespace

std::span<const VectorRow> wide_integer_rows() { return kRows; }

}  // namespace heddle::amd::simulator
