// The functions around attention: the check of a result, devices, tensor files.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void add_checks(nb::module_& module);
void add_files(nb::module_& module);

}  // namespace heddle::python
