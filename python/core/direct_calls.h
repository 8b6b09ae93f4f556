// Repeated calls of torch's tensors, without Python's code between torch and the library: heddle._core.DirectCalls.
//
// A call that was made before, on plain tensors of the same kinds, needs none of the checks in python/heddle/torch:
// they passed, or would raise. What is looked at here is what those checks look at. Whatever is not plainly right
// returns None: then Python makes the call, and says what is wrong.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_direct_calls(nb::module_& module);

}  // namespace heddle::python
