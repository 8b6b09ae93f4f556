// Whether mods that are Python functions are traced at every call: heddle.traces_always().
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

bool traces_always();

void add_trace_always(nanobind::module_& module);

}  // namespace heddle::python
