// The values of a kernel's mods, as the kernel takes them.
#pragma once

#include "backend/cuda/emit/expression_text.h"
#include "heddle/expr.h"
#include "shared/forward_sm90.h"

namespace heddle::cuda {

/// Params as words, and captures as pointers with their strides and extents in elements, in the layout's order; what
/// else `values` holds stays. Every name must be bound: in `own`, the library's names, or in `bindings`. Allocates
/// nothing.
void set_mod_values(const emit::ModLayout& layout, const Bindings& bindings, const Bindings& own,
                    shared::ModValues& values);

}  // namespace heddle::cuda
