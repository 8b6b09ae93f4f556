// The docstrings of the functions on expressions, each with an example that the tests run.
#pragma once

#include <string>

namespace heddle::python {

/// The docstring of heddle.<name>; empty for a name without one, which the tests refuse.
const char* function_doc(const std::string& name);

}  // namespace heddle::python
