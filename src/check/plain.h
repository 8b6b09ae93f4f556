// "Plain": what an attention computes that is not fused. S, mods and softmax in the problem's reals (f32, or f64), P
// rounded to the storage dtype's precision, P V accumulated in the reals, o rounded once.
#pragma once

#include <vector>

#include "reference/attend.h"

namespace heddle::check {

struct PlainRow {
  std::vector<double> o;           // [Dv], rounded to o's dtype
  double top, log_sum, max_score;  // lse in two parts, as reference::RowResult has it
  std::vector<double> roundings;   // [Dv] what rounding one weight may change; empty: nothing
  bool round_alike;                // it is what rounding all of them may, for they are equal
  double lse;                      // m + ln l in the reals
};

/// `mods` evaluate scores and weights in the problem's precision.
PlainRow plain_row(const problem::AttentionProblem& problem, const reference::ElementMods& mods,
                   const reference::RowInputs& inputs);

/// Significand bits of a floating dtype, the implicit one included: 24 for f32. Unit roundoff is 2^-bits.
int significand_bits(DType dtype);
/// x rounded to nearest even at `bits` bits, without limits of the exponent.
double round_significand(double x, int bits);
/// x stored as `dtype` and read back.
double round_to(DType dtype, double x);

}  // namespace heddle::check
