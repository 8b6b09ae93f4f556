// Partitions of a sequence over ranks, and what they exchange, in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_partitions(nb::module_& module);

}  // namespace heddle::python
