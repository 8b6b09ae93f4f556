// Do strided tensors share memory? Exact for strided views of any layout: two tensors interleaved in one buffer do not.
// Runs ask this: nothing here allocates.
#pragma once

#include "base/view_checks.h"
#include "heddle/tensor.h"

namespace heddle::problem {

using base::Footprint;
using base::footprint_of;

/// True when the two ranges of addresses have a byte in common: cheap, and necessary for overlaps.
bool ranges_meet(const ConstTensorView& x, const Footprint& x_at, const ConstTensorView& y, const Footprint& y_at);

/// True when an element of `x` and an element of `y` share a byte. Layouts so tangled that a bounded search does not
/// decide count as sharing. Both have a footprint.
bool overlaps(const ConstTensorView& x, const ConstTensorView& y);

/// True when two elements of `x` share a byte (an axis of stride 0, say).
bool overlaps_itself(const ConstTensorView& x);

}  // namespace heddle::problem
