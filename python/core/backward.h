// The backward in Python: heddle._core.attention_backward, BackwardPlan, explain_backward, check_backward.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_backward(nb::module_& module);

}  // namespace heddle::python
