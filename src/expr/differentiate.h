// Derivatives of score mods, for the backward pass.
#pragma once

#include <vector>

#include "expr/interpret.h"

namespace heddle::expr {

/// d e / d score, simplified for `precision`. Kinks (abs, min, max, where, floor) take the derivative of the branch
/// taken, and what a branch not taken would give, NaN or infinite, does not come through; at a tie of min and max half
/// each, as PyTorch's. Masked elements are the caller's affair.
Expr d_score(const Expr& e, Precision precision);

/// One place where a capture is read: d e / d capture[indices] = `gradient`, to be added at `indices` for every
/// element. Where an `at` took its fill, the gradient is 0 and the indices are outside the tensor.
struct CaptureGradient {
  CaptureDecl capture;
  std::vector<Expr> indices;
  Expr gradient;
};
/// All reads of floating captures that `e` depends on smoothly, in the order of evaluation.
std::vector<CaptureGradient> d_captures(const Expr& e, Precision precision);

}  // namespace heddle::expr
