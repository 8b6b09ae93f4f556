// BlockMask in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_block_masks(nb::module_& module);

}  // namespace heddle::python
