// Do strided tensors share memory? Exact for strided views of any layout: two tensors interleaved in one buffer do not.
// Runs ask this: nothing here allocates.
#pragma once

#include "heddle/tensor.h"

namespace heddle::problem {

/// The bytes from the lowest element's first to the highest element's last: where they begin, counted from the view's
/// data, and how many they are; none when there is no element.
struct Footprint {
  std::int64_t lowest = 0, bytes = 0;
};
/// Throws out_of_memory, naming the tensor, when the bytes or their offsets reach 2^61.
Footprint footprint_of(std::string_view name, const ConstTensorView& view);

/// True when the two ranges of addresses have a byte in common: cheap, and necessary for overlaps.
bool ranges_meet(const ConstTensorView& x, const Footprint& x_at, const ConstTensorView& y, const Footprint& y_at);

/// True when an element of `x` and an element of `y` share a byte. Layouts so tangled that a bounded search does not
/// decide count as sharing. Both have a footprint.
bool overlaps(const ConstTensorView& x, const ConstTensorView& y);

/// True when two elements of `x` share a byte (an axis of stride 0, say).
bool overlaps_itself(const ConstTensorView& x);

}  // namespace heddle::problem
