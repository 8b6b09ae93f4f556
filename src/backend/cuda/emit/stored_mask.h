// The kernel that finds the words of a stored mask, before any run of forward_sm90.
#pragma once

#include "backend/cuda/emit/expression_text.h"
#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::emit {

/// `layout` is the mask's own; by_sequence as the forward kernel's. The kernel's function is called "store_mask". It
/// serves every tile.
jit::Source stored_mask(const Expr& mask, const ModLayout& layout);

}  // namespace heddle::cuda::emit
