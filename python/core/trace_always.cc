#include "trace_always.h"

#include <cstdlib>

namespace heddle::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr const char* kTracesAlwaysDoc =
    R"(Whether mods that are Python functions are traced at every call, and nothing of theirs is kept: what
set_trace_always said last, before that whether the environment variable HEDDLE_TRACE_ALWAYS is set.

>>> import heddle
>>> heddle.traces_always()
False
)";
constexpr const char* kSetTraceAlwaysDoc =
    R"(Whether mods that are Python functions are traced at every call from now on. It holds for the
process, for heddle and heddle.torch. Plans and block masks that were made before keep what they have.

>>> import heddle
>>> heddle.set_trace_always(True)
>>> heddle.traces_always()
True
>>> heddle.set_trace_always(False)
)";

/// Whether every mod is traced at every call. The variable stands in the library's table (src/base/environment.cc).
bool& state() {
  static bool always = [] {
    const char* given = std::getenv("HEDDLE_TRACE_ALWAYS");
    return given != nullptr && *given != '\0';
  }();
  return always;
}

}  // namespace

bool traces_always() { return state(); }

void add_trace_always(nb::module_& module) {
  module.def(
      "traces_always", [] { return state(); }, kTracesAlwaysDoc);
  module.def(
      "set_trace_always",
      [](nb::handle always) {
        if (!PyBool_Check(always.ptr())) {
          throw nb::type_error(nb::str("always is {}; a bool is accepted").format(nb::repr(always)).c_str());
        }
        state() = always.is(Py_True);
      },
      "always"_a.none(), kSetTraceAlwaysDoc, nb::sig("def set_trace_always(always: bool) -> None"));
}

}  // namespace heddle::python
