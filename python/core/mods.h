// The ready-made mods of heddle/mods.h in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_mods(nb::module_& module);

}  // namespace heddle::python
