// Expr and Capture in Python.
#pragma once

#include <nanobind/nanobind.h>

#include "heddle/expr.h"

namespace heddle::python {

namespace nb = nanobind;

/// A Python number, bool or Expr. NumPy's scalars are numbers, too, and so is a capture without axes. Throws type_error
/// for anything else.
Expr expr_of(nb::handle value);

void add_expressions(nb::module_& module);

}  // namespace heddle::python
