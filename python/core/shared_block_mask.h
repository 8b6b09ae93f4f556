// A block mask as Python holds it.
#pragma once

#include <memory>
#include <string>

#include "heddle/block_mask.h"

namespace heddle::python {

/// heddle._core.BlockMask: never changed once made, so that a plan of another thread may read it. Python's update()
/// makes another one.
struct SharedBlockMask {
  std::shared_ptr<const BlockMask> mask;
};

/// A plan's mask in its explanation: the first score matrix as SVG. Empty where everything attends.
inline std::string picture_of(const BlockMask* mask) {
  return mask == nullptr || mask->shape().sequences.empty() || mask->shape().heads == 0 ? "" : mask->svg();
}

}  // namespace heddle::python
