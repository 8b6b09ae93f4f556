// Mods whose integers leave i32 for the sizes of a call, rewritten: src/expr/exact_integers.h. What was found is kept.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "heddle/expr.h"

namespace heddle::python {

namespace nb = nanobind;

/// expr::exact_up_to(), kept by the expression.
std::int64_t exact_up_to(const Expr& e);

void add_exact_mods(nb::module_& module);

}  // namespace heddle::python
