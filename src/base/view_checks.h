// Rules that every tensor argument must obey, whoever takes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "heddle/tensor.h"

namespace heddle::base {

/// "bf16 [2, 8, 512, 64]"
std::string describe(const ConstTensorView& view);

/// The bytes from the lowest element's first to the highest element's last: where they begin, counted from the view's
/// data, and how many they are; none when there is no element.
struct Footprint {
  std::int64_t lowest = 0, bytes = 0;
};
/// Throws out_of_memory, naming the tensor, when the bytes or their offsets reach 2^61.
Footprint footprint_of(std::string_view name, const ConstTensorView& view);

/// Whether the extents' product leaves 64 bits; the extents are not negative.
bool count_overflows(const Dims& shape);

/// A stride an axis, extents not negative, a span that 64 bits can address, and of the CPU index 0. Throws
/// invalid_argument or out_of_memory, naming the tensor.
void check_view(std::string_view name, const ConstTensorView& view);
/// Memory present and aligned to the element size, when there is an element. Throws invalid_argument.
void check_memory(std::string_view name, const ConstTensorView& view);

}  // namespace heddle::base
