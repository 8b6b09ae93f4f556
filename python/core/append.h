// append_kv and find_prefixes in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_append(nb::module_& module);

}  // namespace heddle::python
