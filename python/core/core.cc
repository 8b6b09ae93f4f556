// The module heddle._core: the library's functions over views of Python's arrays. Names and defaults that users see are
// those of heddle/__init__.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "append.h"
#include "arguments.h"
#include "backward.h"
#include "backward_tensors.h"
#include "block_masks.h"
#include "call_tensors.h"
#include "checks.h"
#include "direct_calls.h"
#include "exact_mods.h"
#include "expressions.h"
#include "function_docs.h"
#include "heddle/archive.h"
#include "heddle/attention.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/events.h"
#include "kept_mods.h"
#include "kept_plans.h"
#include "mods.h"
#include "packed_calls.h"
#include "partitions.h"
#include "plans.h"
#include "recorded_calls.h"
#include "tensors.h"
#include "trace_always.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

/// Python's listener is never freed: threads of the library may outlive the interpreter.
void set_listener(const nb::object& listener) {
  if (listener.is_none()) return set_event_listener({});
  PyObject* const kept = nb::object(listener).release().ptr();
  set_event_listener([kept](const std::string& event) {
    const nb::gil_scoped_acquire held;
    try {
      nb::borrow(kept)(event);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("an event's listener");
    }
  });
}

void attention_into_arrays(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const Array& o, const GivenOut& lse,
                           const Arguments& arguments, const GivenOut& max_scores, const GivenOut& lse_rest) {
  const AttentionOptions options = options_of(arguments);
  const AttentionTensors tensors = tensors_of(q, k, v, o, lse, false, max_scores, lse_rest);
  const WithoutGil released;
  attention_into(tensors, options);
}

Pair attention_of_arrays(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, bool with_lse,
                         const Arguments& arguments) {
  const AttentionOptions options = options_of(arguments);
  const ConstTensorView q_view = const_view_of(q, "q"), k_view = const_view_of(k, "k"), v_view = const_view_of(v, "v");
  const AttentionResult result = [&] {
    const WithoutGil released;
    return attention(q_view, k_view, v_view, options, with_lse);
  }();
  return pair_of(to_python(result.o), with_lse ? nb::object(to_python(result.lse)) : nb::none());
}

/// The Python exception of an error: a subclass where one says more.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyObject* type = PyExc_RuntimeError;
    if (error.code() == ErrorCode::invalid_argument) type = PyExc_ValueError;
    if (error.code() == ErrorCode::unsupported) type = PyExc_NotImplementedError;  // a RuntimeError
    if (error.code() == ErrorCode::out_of_memory) type = PyExc_MemoryError;
    if (error.code() == ErrorCode::io) type = PyExc_OSError;
    const std::string_view sentence = error.what();  // may quote the name of a file, which need not be UTF-8
    const auto size = static_cast<Py_ssize_t>(sentence.size());
    PyObject* const text = PyUnicode_DecodeUTF8(sentence.data(), size, "backslashreplace");
    if (text == nullptr) return;
    PyErr_SetObject(type, text);
    Py_DECREF(text);
  }
}

void add_counts(nb::module_& module) {
  module.def("kernel_counts", [] {
    const KernelCounts counts = kernel_counts();
    return std::map<std::string, std::int64_t>{{"compiled", counts.compiled},
                                               {"from_memory", counts.from_memory},
                                               {"from_disk", counts.from_disk},
                                               {"from_archive", counts.from_archive},
                                               {"rejected", counts.rejected}};
  });
  module.def(
      "plan_cache_counts",
      [] {
        const PlanCacheCounts counts = plan_cache_counts();
        return std::map<std::string, std::int64_t>{{"hits", counts.hits},
                                                   {"misses", counts.misses},
                                                   {"evictions", counts.evictions},
                                                   {"plans", counts.plans},
                                                   {"bytes", counts.bytes}};
      },
      function_doc("plan_cache_counts"));
}

}  // namespace

NB_MODULE(_core_of_main, module) {
  nb::register_exception_translator(translate);
  // At exit nanobind names what is still alive. With PyTorch imported that is much: Python then does not take its
  // modules apart, and torch.compile keeps what it has seen. The tests, which import no torch, ask for the names.
  nb::set_leak_warnings(false);
  module.def(
      "set_leak_warnings", [](bool wanted) { nb::set_leak_warnings(wanted); }, "wanted"_a);
  add_tensors(module);
  add_expressions(module);
  add_exact_mods(module);
  add_block_masks(module);
  add_partitions(module);
  add_arguments(module);
  add_trace_always(module);
  add_kept_mods(module);
  add_kept_plans(module);
  add_recorded_calls(module);
  add_direct_calls(module);
  add_packed_calls(module);
  add_checks(module);
  add_files(module);
  add_mods(module);
  add_plans(module);
  add_append(module);
  add_backward_tensors(module);
  add_backward(module);
  module.def("attention", &attention_of_arrays, "q"_a, "k"_a, "v"_a, "with_lse"_a, "arguments"_a);
  module.def("attention_into", &attention_into_arrays, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "arguments"_a,
             "max_scores"_a.none() = nb::none(), "lse_rest"_a.none() = nb::none());
  module.def(
      "check_array", [](const ReadOnly&) {}, "array"_a, "Raises TypeError for what no function would take.");
  module.def("version", &version);
  module.def("cache_folder", &cache_folder);
  module.def(
      "use_archive", [](const nb::bytes& path) { use_archive(std::string(path.c_str(), path.size())); }, "path"_a);
  module.def("set_event_listener", &set_listener, "listener"_a.none());
  add_counts(module);
  module.def(
      "clear_plan_cache",
      [] {
        const WithoutGil released;
        clear_plan_cache();
      },
      function_doc("clear_plan_cache"));
}

}  // namespace heddle::python

namespace {

/// Refuses subinterpreters before nanobind is initialised there: its types, and the caches here, are the process's.
int execute(PyObject* module) {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) {
    return heddle::python::nanobind__core_of_main_exec(module);
  }
  PyErr_SetString(PyExc_ImportError, "heddle does not work in subinterpreters: import it in the main interpreter");
  return -1;
}

}  // namespace

/// nanobind's definition of the module, executed by execute(). From Python 3.13 on the main interpreter makes
/// definitions for all others, so a definition says nothing of who imports.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  PyObject* const made = heddle::python::PyInit__core_of_main();
  if (made == nullptr) return nullptr;
  for (PyModuleDef_Slot* slot = reinterpret_cast<PyModuleDef*>(made)->m_slots; slot->slot != 0; ++slot) {
    if (slot->slot == Py_mod_exec) slot->value = reinterpret_cast<void*>(&execute);
  }
  return made;
}
