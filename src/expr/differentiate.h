// Derivatives of score mods, for the backward pass.
#pragma once

#include <vector>

#include "expr/node.h"

namespace heddle::expr {

/// d e / d score, simplified as far as the rules give. Kinks (abs, min, max, where, floor) take the derivative of the
/// branch taken; at a tie of min and max, half each, as PyTorch's. Masked elements are the caller's affair.
Expr d_score(const Expr& e);

/// One place where a capture is read: d e / d capture[indices] = `gradient`, to be added at `indices` for every
/// element.
struct CaptureGradient {
  CaptureDecl capture;
  std::vector<Expr> indices;
  Expr gradient;
};
/// All reads of floating captures that `e` depends on smoothly.
std::vector<CaptureGradient> d_captures(const Expr& e);

}  // namespace heddle::expr
