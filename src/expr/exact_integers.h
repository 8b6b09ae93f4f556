// Integer arithmetic that i32 does not hold: rewritten for the sizes of one call, so that its results are those of 64
// bits, as torch computes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "heddle/expr.h"

namespace heddle::expr {

/// How large the integers are that a mod of one call meets.
struct IntegerSizes {
  std::int64_t batch = 1, heads = 1;
  std::int64_t queries = 0, keys = 0;          // positions and lengths are 0 to these
  std::map<std::string, std::int64_t> params;  // integers, also beyond i32
};

/// An expression with the values that `e` has in arithmetic of 64 bits: `e` itself unless an operation can leave i32
/// for these sizes. Params beyond i32 become literals; where no index is read so does what is computed of params.
///
/// Elements of captures wider than 16 bits, and numbers that were real, may be anything: sums, products and shifts of
/// them alone stay in i32 and wrap, as before. A real number becomes an integer of i32.
///
/// Throws invalid_argument where a divisor beyond i32 may be 0 or has more than 62 bits, and for a fill of at() beyond
/// i32.
Expr exact_integers(const Expr& e, const IntegerSizes& sizes);

/// The greatest n, a power of 2 up to 2^30, for which exact_integers() changes nothing where all sizes are n or less,
/// and params from -n to n. 0 if there is none.
std::int64_t exact_up_to(const Expr& e);

}  // namespace heddle::expr
