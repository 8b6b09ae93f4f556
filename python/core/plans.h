// AttentionPlan in Python, and the functions that speak of plans.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_plans(nb::module_& module);

}  // namespace heddle::python
