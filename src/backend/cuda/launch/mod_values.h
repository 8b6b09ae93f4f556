// The values of a kernel's mods, as the kernel takes them.
#pragma once

#include "backend/cuda/emit/expression_text.h"
#include "heddle/expr.h"
#include "problem/problem.h"
#include "shared/forward_sm90.h"

namespace heddle::cuda {

/// Params as words and captures as pointers, in the layout's order; lengths and q_start of the problem's first
/// sequence, which are those of all. Allocates nothing.
void set_mod_values(const emit::ModLayout& layout, const Bindings& bindings, shared::ModValues& values);

}  // namespace heddle::cuda
