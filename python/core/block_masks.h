// BlockMask in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "heddle/block_mask.h"

namespace heddle::python {

namespace nb = nanobind;

/// heddle._core.BlockMask: never changed once made, so that a plan of another thread may read it. Python's update()
/// makes another one.
struct SharedBlockMask {
  std::shared_ptr<const BlockMask> mask;
};

void add_block_masks(nb::module_& module);

}  // namespace heddle::python
