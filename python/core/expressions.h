// Expr and Capture in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_expressions(nb::module_& module);

}  // namespace heddle::python
