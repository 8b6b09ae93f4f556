// Derivatives of score and weight mods, for the backward pass.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "expr/interpret.h"

namespace heddle::expr {

/// The reals for which a derivative is simplified. Without them the derivative stays as the rules wrote it. The
/// reference wants that, so that a wrong rule of the simplifier does not reach both sides of a comparison.
using SimplifiedFor = std::optional<Precision>;

/// d e / d score. Kinks (abs, min, max, where, floor) take the derivative of the branch taken; NaN and infinities of
/// the other branch do not come through. At a tie, min and max give half to each, as PyTorch's maximum does. A slope
/// that has gone to 0 stays 0 where the derivative inside overflows. ops.def has the table. Masked elements are the
/// caller's affair.
Expr d_score(const Expr& e, SimplifiedFor precision);

/// One place where a capture is read: d e / d capture[indices] = `gradient`, to be added at `indices` for every
/// element. If an `at` took its fill, the gradient is 0 and the indices are outside the tensor: nothing is added, even
/// if the incoming gradient is NaN.
struct CaptureGradient {
  CaptureDecl capture;
  std::vector<Expr> indices;
  Expr gradient;
  bool with_fill;  // it is an `at`
};
/// All reads of floating captures that `e` depends on smoothly, in the order of evaluation.
std::vector<CaptureGradient> d_captures(const Expr& e, SimplifiedFor precision);

/// d e / d param.
struct ParamGradient {
  std::string name;
  Expr gradient;
};
/// All floating params that `e` depends on smoothly, in the order of evaluation.
std::vector<ParamGradient> d_params(const Expr& e, SimplifiedFor precision);

}  // namespace heddle::expr
