// A block mask as Python holds it.
#pragma once

#include <memory>

#include "heddle/block_mask.h"

namespace heddle::python {

/// heddle._core.BlockMask: never changed once made, so that a plan of another thread may read it. Python's update()
/// makes another one.
struct SharedBlockMask {
  std::shared_ptr<const BlockMask> mask;
};

}  // namespace heddle::python
