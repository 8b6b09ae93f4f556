#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "heddle/error.h"
#include "heddle/tensor.h"

namespace heddle {

Dims::Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}

Dims::Dims(std::span<const std::int64_t> values) {
  if (values.size() > kMaxRank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a shape has {} axes; at most {} are accepted", values.size(), kMaxRank));
  }
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

void Dims::push_back(std::int64_t value) {
  if (size_ == kMaxRank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a shape has {} axes; at most {} are accepted", size_ + 1, kMaxRank));
  }
  values_[static_cast<std::size_t>(size_++)] = value;
}

bool Dims::operator==(const Dims& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", ")); }

namespace {

void check_extents(const Dims& shape) {
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent < 0; })) {
    throw Error(ErrorCode::invalid_argument, fmt::format("shape {} has a negative extent", to_string(shape)));
  }
}

std::int64_t checked_product(std::int64_t a, std::int64_t b, const Dims& shape) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(ErrorCode::out_of_memory, fmt::format("shape {} has more than 2^63 - 1 elements", to_string(shape)));
  }
  return product;
}

}  // namespace

std::int64_t element_count(const Dims& shape) {
  check_extents(shape);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count = checked_product(count, extent, shape);
  return count;
}

Dims contiguous_strides(const Dims& shape) {
  check_extents(shape);
  Dims strides = shape;
  std::int64_t stride = 1;
  for (int axis = shape.size() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    if (axis > 0) stride = checked_product(stride, std::max<std::int64_t>(shape[axis], 1), shape);
  }
  return strides;
}

}  // namespace heddle
