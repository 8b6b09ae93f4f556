// Calls of torch's packed sequences: heddle._core.PackedCalls, for heddle/torch/_direct.py.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_packed_calls(nb::module_& module);

}  // namespace heddle::python
