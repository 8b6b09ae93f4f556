#include "base/rows.h"

namespace heddle::base {

Walk coalesce(const Dims& shape, const Dims& strides) {
  Walk walk;
  for (int axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    const int last = walk.shape.size() - 1;
    if (last >= 0 && walk.strides[last] == strides[axis] * shape[axis]) {
      walk.shape[last] *= shape[axis];
      walk.strides[last] = strides[axis];
    } else {
      walk.shape.push_back(shape[axis]);
      walk.strides.push_back(strides[axis]);
    }
  }
  if (walk.shape.size() == 0) {
    walk.shape.push_back(1);
    walk.strides.push_back(1);
  }
  return walk;
}

}  // namespace heddle::base
