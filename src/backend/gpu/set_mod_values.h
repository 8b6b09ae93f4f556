// The values of a kernel's mods, as the kernel takes them.
#pragma once

#include "backend/device_text/expression_text.h"
#include "heddle/expr.h"
#include "shared/mod_values.h"

namespace heddle::gpu {

/// Params as words, and captures as pointers with their strides and extents in elements, in the layout's order; the
/// rest of `values` stays. Every name must be bound: in `own`, the library's names, or in `bindings`. Allocates
/// nothing.
void set_mod_values(const device_text::ModLayout& layout, const Bindings& bindings, const Bindings& own,
                    shared::ModValues& values);

}  // namespace heddle::gpu
