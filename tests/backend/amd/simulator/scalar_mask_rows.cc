// Bitwise operations, which lane masks are made with; those that change exec; comparisons, whose result is scc.
#include "backend/amd/simulator/scalar.h"

namespace heddle::amd::simulator {
namespace {

using U64 = std::uint64_t;
using Call = ScalarCall&;

std::uint32_t low(U64 x) { return static_cast<std::uint32_t>(x); }
std::int32_t sign(U64 x) { return static_cast<std::int32_t>(x); }

/// The second source is exec, which gets the result; the destination gets the old exec. execute_scalar writes the
/// destination first, so exec is changed here, with scc as the result asks.
template <auto F>
U64 save_exec(Call c) {
  const int registers = c.x.lanes() / 32;
  const U64 old = c.x.exec(), result = F(c.a, old) & c.x.all_lanes();
  c.x.wave.s[kExec] = low(result);
  if (registers == 2) c.x.wave.s[kExec + 1] = low(result >> 32);
  c.scc = result != 0;
  if (c.a_undefined & old) c.x.found(Fault::kUndefined, "exec depends on bits that nothing wrote");
  return old;
}

constexpr ScalarRule kAnd = ScalarRule::kAnd, kAndNot = ScalarRule::kAndNot, kOr = ScalarRule::kOr,
                     kOrNot = ScalarRule::kOrNot, kXor = ScalarRule::kXor, kSave = ScalarRule::kSaveExec,
                     kCompare = ScalarRule::kCompare;

// One operation on 32 and on 64 bits.
#define HEDDLE_BOTH(name, rule, ...)                                        \
  {name "_b32", "i:ii", [](Call c) -> U64 { return __VA_ARGS__; }, rule}, { \
    name "_b64", "l:ll", [](Call c) -> U64 { return __VA_ARGS__; }, rule    \
  }

#define HEDDLE_SAVE(name, ...)                                                                           \
  {name "_saveexec_b32", "i:i", save_exec<[](U64 a, U64 exec) -> U64 { return __VA_ARGS__; }>, kSave}, { \
    name "_saveexec_b64", "l:l", save_exec<[](U64 a, U64 exec) -> U64 { return __VA_ARGS__; }>, kSave    \
  }

// A comparison of registers, and the same with a 16-bit constant.
#define HEDDLE_COMPARE(name, type, constant, ...)  \
  {"s_cmp_" name, ":ii",                           \
   [](Call c) -> U64 {                             \
     const auto a = type(c.a), b = type(c.b);      \
     c.scc = __VA_ARGS__;                          \
     return 0;                                     \
   },                                              \
   kCompare},                                      \
  {                                                \
    "s_cmpk_" name, ":i" constant,                 \
        [](Call c) -> U64 {                        \
          const auto a = type(c.a), b = type(c.b); \
          c.scc = __VA_ARGS__;                     \
          return 0;                                \
        },                                         \
        kCompare                                   \
  }

constexpr ScalarRow kRows[] = {
    HEDDLE_BOTH("s_and", kAnd, c.a & c.b),
    HEDDLE_BOTH("s_or", kOr, c.a | c.b),
    HEDDLE_BOTH("s_xor", kXor, c.a ^ c.b),
    HEDDLE_BOTH("s_and_not1", kAndNot, c.a & ~c.b),
    HEDDLE_BOTH("s_or_not1", kOrNot, c.a | ~c.b),
    HEDDLE_BOTH("s_nand", ScalarRule::kNonZero, ~(c.a & c.b)),
    HEDDLE_BOTH("s_nor", ScalarRule::kNonZero, ~(c.a | c.b)),
    HEDDLE_BOTH("s_xnor", kXor, ~(c.a ^ c.b)),
    {"s_not_b32", "i:i", [](Call c) -> U64 { return ~c.a; }, kXor},
    {"s_not_b64", "l:l", [](Call c) -> U64 { return ~c.a; }, kXor},
    HEDDLE_SAVE("s_and", a& exec),
    HEDDLE_SAVE("s_or", a | exec),
    HEDDLE_SAVE("s_xor", a ^ exec),
    HEDDLE_SAVE("s_and_not1", a & ~exec),
    HEDDLE_SAVE("s_and_not0", ~a& exec),
    HEDDLE_SAVE("s_or_not1", a | ~exec),
    HEDDLE_SAVE("s_or_not0", ~a | exec),
    HEDDLE_SAVE("s_nand", ~(a& exec)),
    HEDDLE_SAVE("s_nor", ~(a | exec)),
    HEDDLE_SAVE("s_xnor", ~(a ^ exec)),
    HEDDLE_COMPARE("eq_i32", sign, "t", a == b),
    HEDDLE_COMPARE("lg_i32", sign, "t", a != b),
    HEDDLE_COMPARE("gt_i32", sign, "t", a > b),
    HEDDLE_COMPARE("ge_i32", sign, "t", a >= b),
    HEDDLE_COMPARE("lt_i32", sign, "t", a < b),
    HEDDLE_COMPARE("le_i32", sign, "t", a <= b),
    HEDDLE_COMPARE("eq_u32", low, "u", a == b),
    HEDDLE_COMPARE("lg_u32", low, "u", a != b),
    HEDDLE_COMPARE("gt_u32", low, "u", a > b),
    HEDDLE_COMPARE("ge_u32", low, "u", a >= b),
    HEDDLE_COMPARE("lt_u32", low, "u", a < b),
    HEDDLE_COMPARE("le_u32", low, "u", a <= b),
    {"s_cmp_eq_u64", ":ll",
     [](Call c) -> U64 {
       c.scc = c.a == c.b;
       return 0;
     },
     kCompare},
    {"s_cmp_lg_u64", ":ll",
     [](Call c) -> U64 {
       c.scc = c.a != c.b;
       return 0;
     },
     kCompare},
    {"s_bitcmp0_b32", ":ii",
     [](Call c) -> U64 {
       c.scc = !(c.a >> (c.b & 31) & 1);
       return 0;
     },
     kCompare},
    {"s_bitcmp1_b32", ":ii",
     [](Call c) -> U64 {
       c.scc = c.a >> (c.b & 31) & 1;
       return 0;
     },
     kCompare},
    {"s_bitcmp0_b64", ":li",
     [](Call c) -> U64 {
       c.scc = !(c.a >> (c.b & 63) & 1);
       return 0;
     },
     kCompare},
    {"s_bitcmp1_b64", ":li",
     [](Call c) -> U64 {
       c.scc = c.a >> (c.b & 63) & 1;
       return 0;
     },
     kCompare},
};

#undef HEDDLE_BOTH
#undef HEDDLE_SAVE
#undef HEDDLE_COMPARE

}  // namespace

std::span<const ScalarRow> scalar_mask_rows() { return kRows; }

}  // namespace heddle::amd::simulator
