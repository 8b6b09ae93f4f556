// The kernel that finds the words of a stored mask, before any run of an attention kernel.
#pragma once

#include <string>

#include "backend/cuda/jit/jit.h"
#include "backend/device_text/expression_text.h"

namespace heddle::cuda::emit {

/// `layout` is the mask's own; by_sequence as the attention kernel's. The kernel's function is called "store_mask". It
/// serves every tile.
jit::Source stored_mask(const Expr& mask, const device_text::ModLayout& layout, const std::string& architecture);

}  // namespace heddle::cuda::emit
