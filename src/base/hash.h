// 64-bit content hashes: XXH64, well mixed, about the speed of memory. Not safe against chosen collisions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "heddle/tensor.h"

namespace heddle::base {

/// XXH64 of `size` bytes; `data` may be null when size is 0.
std::uint64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed = 0);

/// A hash of both; the order of the arguments counts.
constexpr std::uint64_t hash_combine(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  x = (x ^ (x >> 32)) + value;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Dtype, shape and elements of a CPU view, whatever its strides: equal tensors hash equal. Reads each element, however
/// often a stride of 0 repeats it.
std::uint64_t hash_view(const ConstTensorView& view);

/// A summary of a CPU view's content, for comparisons. Making one reads no more than the memory that there is.
struct Content {
  Dims shape;
  std::uint32_t repeated_axes = 0;  // bit i: axis i has stride 0
  std::uint64_t hash = 0;           // of the dtype, and of the elements at index 0 along the repeated axes
};
Content content_of(const ConstTensorView& view);
/// Whether a view of any strides has the dtype, shape and elements that `content` was taken from.
bool holds(const ConstTensorView& view, const Content& content);

}  // namespace heddle::base
