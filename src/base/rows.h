// Walks a strided view row by row in row-major order.
#pragma once

#include <cstdint>

#include "heddle/tensor.h"

namespace heddle::base {

/// Shape and strides (elements) with axes of extent 1 dropped and neighbours joined where one stride covers both; at
/// least one axis. This walk visits the tensor's elements in their order, with the longest rows.
struct Walk {
  Dims shape;
  Dims strides;

  std::int64_t row_length() const { return shape[shape.size() - 1]; }
  std::int64_t row_stride() const { return strides[strides.size() - 1]; }
};

Walk coalesce(const Dims& shape, const Dims& strides);

/// body(offset) for the first element of each row, offsets in elements; nothing when the shape is empty.
template <class Body>
void for_each_row(const Walk& walk, Body&& body) {
  if (element_count(walk.shape) == 0) return;
  Dims index = walk.shape;
  for (int axis = 0; axis < index.size(); ++axis) index[axis] = 0;
  std::int64_t offset = 0;
  for (;;) {
    body(offset);
    int axis = walk.shape.size() - 2;
    for (; axis >= 0; --axis) {
      offset += walk.strides[axis];
      if (++index[axis] < walk.shape[axis]) break;
      offset -= index[axis] * walk.strides[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

}  // namespace heddle::base
