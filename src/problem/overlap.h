// Do strided tensors share memory? Exact for strided views of any layout: two tensors interleaved in one buffer do not.
#pragma once

#include "heddle/tensor.h"

namespace heddle::problem {

/// The bytes from the lowest element's first to the highest element's last; 0 when there is no element. Throws
/// out_of_memory, naming the tensor, when they or their offsets reach 2^61.
std::int64_t byte_span(std::string_view name, const ConstTensorView& view);

/// True when an element of `x` and an element of `y` share a byte. Layouts so tangled that a bounded search does not
/// decide count as sharing. Both passed byte_span.
bool overlaps(const ConstTensorView& x, const ConstTensorView& y);

/// True when two elements of `x` share a byte (an axis of stride 0, say).
bool overlaps_itself(const ConstTensorView& x);

}  // namespace heddle::problem
