#include "arguments.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "heddle/error.h"
#include "shared_block_mask.h"
#include "wide_integers.h"

namespace heddle::python {

using namespace nb::literals;

namespace {

/// Python's function that hears how far runs on the CPU are; null: none. Guarded by the GIL, and never freed, since
/// threads of the library may outlive the interpreter.
PyObject* listener = nullptr;
std::atomic<bool> has_listener = false;
/// While the listener runs: its own calls, and calls of other threads, are not heard then. Guarded by the GIL.
bool listens = false;

void tell_listener(double fraction) {
  if (listener == nullptr || listens) return;
  struct Listening {
    Listening() { listens = true; }
    ~Listening() { listens = false; }
  } const listening;
  nb::borrow(listener)(fraction);
}

/// Gives the function that was set before, or None.
nb::object set_progress(const nb::object& function) {
  nb::object before = listener == nullptr ? nb::none() : nb::steal(listener);
  listener = function.is_none() ? nullptr : nb::object(function).release().ptr();
  has_listener = listener != nullptr;
  return before;
}

/// Progress and Ctrl-C during a long run on the CPU. Python handles signals on the main thread alone; threads of the
/// library do not wait for the GIL in vain.
void report(double fraction) {
  const bool may_stop = WithoutGil::computes();
  if (!may_stop && !has_listener) return;
  const nb::gil_scoped_acquire held;
  tell_listener(fraction);
  if (may_stop && PyErr_CheckSignals() != 0) throw nb::python_error();
}

Normalizer normalizer_named(const std::string& name) {
  if (name == "softmax") return Normalizer::softmax;
  if (name == "none") return Normalizer::none;
  if (name == "sigmoid") return Normalizer::sigmoid;
  throw Error(ErrorCode::invalid_argument,
              "normalizer is '" + name + "'; 'softmax', 'none' and 'sigmoid' are accepted");
}

BackendChoice backend_named(const std::string& wanted) {
  for (const BackendChoice backend : {BackendChoice::automatic, BackendChoice::cpu, BackendChoice::reference,
                                      BackendChoice::cuda, BackendChoice::amd}) {
    if (wanted == name(backend)) return backend;
  }
  throw Error(ErrorCode::invalid_argument,
              "backend is '" + wanted + "'; 'automatic', 'cpu', 'reference', 'cuda' and 'amd' are accepted");
}

Tuning tuning_named(const std::string& wanted) {
  for (const Tuning tuning : {Tuning::automatic, Tuning::off, Tuning::recorded, Tuning::measure, Tuning::again}) {
    if (wanted == name(tuning)) return tuning;
  }
  throw Error(ErrorCode::invalid_argument,
              "tuning is '" + wanted + "'; 'automatic', 'off', 'recorded', 'measure' and 'again' are accepted");
}

}  // namespace

thread_local bool WithoutGil::computes_ = false;

Bindings bindings_of(const NamedValues& given) {
  Bindings bindings;
  for (const auto& [name, array] : given.captures) {
    const ConstTensorView view = const_view_of(array, name.c_str());
    refuse_wide_integers(name, view);
    bindings.captures[name] = view;
  }
  bindings.params = given.params;
  return bindings;
}

AttentionOptions options_of(const Arguments& given) {
  AttentionOptions options;
  options.score_mod = given.score_mod, options.mask_mod = given.mask_mod, options.weight_mod = given.weight_mod;
  options.bindings = bindings_of(given.values);
  options.scale = given.scale;
  options.normalizer = normalizer_named(given.normalizer);
  options.block_mask = given.block_mask;
  options.mask_version = given.mask_version;
  options.backend = backend_named(given.backend);
  options.tuning = tuning_named(given.tuning);
  options.threads = given.threads;
  options.stream = reinterpret_cast<void*>(given.stream);
  options.progress = report;
#define HEDDLE_TENSOR_OPTION(name, group, help) options.name = given_view(given.name, #name);
#define HEDDLE_LENGTHS_OPTION(name, group, help) options.name = given_view(given.name, #name);
#define HEDDLE_COUNT_OPTION(name) options.name = given.name;
#define HEDDLE_FLAG_OPTION(name, shown, help) options.name = given.name;
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) options.name = given.name;
#include "heddle/options.def"
  return options;
}

void add_arguments(nb::module_& module) {
  module.def("set_progress", &set_progress, "function"_a.none());
  nb::class_<NamedValues>(module, "NamedValues", "Captures and params by name.")
      .def(nb::init<>())
      .def_rw("captures", &NamedValues::captures)
      .def_rw("params", &NamedValues::params);
  nb::class_<Arguments>(module, "Arguments", "What a call's options are made from.")
      .def(nb::init<>())
      .def_rw("score_mod", &Arguments::score_mod)
      .def_rw("mask_mod", &Arguments::mask_mod)
      .def_rw("weight_mod", &Arguments::weight_mod)
      .def_prop_rw(
          "captures", [](const Arguments& self) { return self.values.captures; },
          [](Arguments& self, std::map<std::string, ReadOnly> given) { self.values.captures = std::move(given); })
      .def_prop_rw(
          "params", [](const Arguments& self) { return self.values.params; },
          [](Arguments& self, std::map<std::string, ParamValue> given) { self.values.params = std::move(given); })
      .def_rw("scale", &Arguments::scale, nb::arg().none())
#define HEDDLE_TENSOR_OPTION(name, group, help) .def_rw(#name, &Arguments::name, nb::arg().none())
#define HEDDLE_LENGTHS_OPTION(name, group, help) .def_rw(#name, &Arguments::name, nb::arg().none())
#define HEDDLE_COUNT_OPTION(name) .def_rw(#name, &Arguments::name, nb::arg().none())
#define HEDDLE_FLAG_OPTION(name, shown, help) .def_rw(#name, &Arguments::name)
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) .def_rw(#name, &Arguments::name)
#include "heddle/options.def"
      .def_rw("normalizer", &Arguments::normalizer)
      .def_rw("backend", &Arguments::backend)
      .def_rw("tuning", &Arguments::tuning)
      .def_prop_rw(
          "block_mask", [](const Arguments& self) { return SharedBlockMask{self.block_mask}; },
          [](Arguments& self, const SharedBlockMask& given) { self.block_mask = given.mask; })
      .def_rw("mask_version", &Arguments::mask_version)
      .def_rw("threads", &Arguments::threads)
      .def_rw("stream", &Arguments::stream);
}

}  // namespace heddle::python
