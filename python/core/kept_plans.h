// Plans of the library's cache in Python: heddle._core.KeptPlan.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_kept_plans(nb::module_& module);

}  // namespace heddle::python
