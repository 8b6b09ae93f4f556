// The module heddle._core: the library's functions over views of Python's arrays. Names and defaults that users see are
// those of heddle/__init__.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "expressions.h"
#include "heddle/attention.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/files.h"
#include "heddle/mods.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;
using ReadOnly = nb::ndarray<nb::ro>;
using Given = std::optional<ReadOnly>;

/// Lets Python's other threads run until the end of its scope.
using WithoutGil = nb::gil_scoped_release;

/// Ctrl-C during a long run on the CPU.
void stop_if_asked(double) {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::optional<ConstTensorView> given_view(const Given& array, const char* name) {
  if (!array) return {};
  return const_view_of(*array, name);
}

/// What a call's options are made from; it keeps the arrays alive.
struct Arguments {
  Expr score_mod, mask_mod, weight_mod;
  std::map<std::string, ReadOnly> captures;
  std::map<std::string, ParamValue> params;
  std::optional<double> scale;
  Given sinks, q_lengths, kv_lengths, cu_seqlens_q, cu_seqlens_kv, page_table, q_start, kv_start, q_descale, k_descale,
      v_descale;
  std::optional<std::int64_t> max_q_len, max_kv_len;
  std::string normalizer = "softmax", backend = "automatic";
  std::shared_ptr<const BlockMask> block_mask;
  int threads = 0;
  bool clamp_reads = false;
  std::uintptr_t stream = 0;
};

Normalizer normalizer_named(const std::string& name) {
  if (name == "softmax") return Normalizer::softmax;
  if (name == "none") return Normalizer::none;
  if (name == "sigmoid") return Normalizer::sigmoid;
  throw Error(ErrorCode::invalid_argument,
              "normalizer is '" + name + "'; 'softmax', 'none' and 'sigmoid' are accepted");
}

BackendChoice backend_named(const std::string& wanted) {
  for (const BackendChoice backend :
       {BackendChoice::automatic, BackendChoice::cpu, BackendChoice::reference, BackendChoice::cuda}) {
    if (wanted == name(backend)) return backend;
  }
  throw Error(ErrorCode::invalid_argument,
              "backend is '" + wanted + "'; 'automatic', 'cpu', 'reference' and 'cuda' are accepted");
}

AttentionOptions options_of(const Arguments& given) {
  AttentionOptions options;
  options.score_mod = given.score_mod, options.mask_mod = given.mask_mod, options.weight_mod = given.weight_mod;
  for (const auto& [name, array] : given.captures) options.bindings.captures[name] = const_view_of(array, name.c_str());
  options.bindings.params = given.params;
  options.scale = given.scale;
  options.sinks = given_view(given.sinks, "sinks");
  options.normalizer = normalizer_named(given.normalizer);
  options.q_lengths = given_view(given.q_lengths, "q_lengths");
  options.kv_lengths = given_view(given.kv_lengths, "kv_lengths");
  options.cu_seqlens_q = given_view(given.cu_seqlens_q, "cu_seqlens_q");
  options.cu_seqlens_kv = given_view(given.cu_seqlens_kv, "cu_seqlens_kv");
  options.page_table = given_view(given.page_table, "page_table");
  options.q_start = given_view(given.q_start, "q_start");
  options.kv_start = given_view(given.kv_start, "kv_start");
  options.max_q_len = given.max_q_len;
  options.max_kv_len = given.max_kv_len;
  options.q_descale = given_view(given.q_descale, "q_descale");
  options.k_descale = given_view(given.k_descale, "k_descale");
  options.v_descale = given_view(given.v_descale, "v_descale");
  options.block_mask = given.block_mask;
  options.backend = backend_named(given.backend);
  options.threads = given.threads;
  options.clamp_reads = given.clamp_reads;
  options.stream = reinterpret_cast<void*>(given.stream);
  options.progress = stop_if_asked;
  return options;
}

void attention_into_arrays(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const Array& o,
                           const std::optional<Array>& lse, const Arguments& arguments) {
  const AttentionOptions options = options_of(arguments);
  const ConstTensorView q_view = const_view_of(q, "q"), k_view = const_view_of(k, "k"), v_view = const_view_of(v, "v");
  const TensorView o_view = python::view_of(o, "o");
  std::optional<TensorView> lse_view;
  if (lse) lse_view = python::view_of(*lse, "lse");
  const WithoutGil released;
  attention_into(q_view, k_view, v_view, o_view, lse_view, options);
}

nb::tuple attention_of_arrays(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, bool with_lse,
                              const Arguments& arguments) {
  const AttentionOptions options = options_of(arguments);
  const ConstTensorView q_view = const_view_of(q, "q"), k_view = const_view_of(k, "k"), v_view = const_view_of(v, "v");
  const AttentionResult result = [&] {
    const WithoutGil released;
    return attention(q_view, k_view, v_view, options, with_lse);
  }();
  return nb::make_tuple(to_numpy(result.o), with_lse ? to_numpy(result.lse) : nb::none());
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
    PyErr_SetString(type, error.what());
  }
}

void add_arguments(nb::module_& module) {
  nb::class_<Arguments>(module, "Arguments", "What a call's options are made from.")
      .def(nb::init<>())
      .def_rw("score_mod", &Arguments::score_mod)
      .def_rw("mask_mod", &Arguments::mask_mod)
      .def_rw("weight_mod", &Arguments::weight_mod)
      .def_rw("captures", &Arguments::captures)
      .def_rw("params", &Arguments::params)
      .def_rw("scale", &Arguments::scale, nb::arg().none())
      .def_rw("sinks", &Arguments::sinks, nb::arg().none())
      .def_rw("q_lengths", &Arguments::q_lengths, nb::arg().none())
      .def_rw("kv_lengths", &Arguments::kv_lengths, nb::arg().none())
      .def_rw("cu_seqlens_q", &Arguments::cu_seqlens_q, nb::arg().none())
      .def_rw("cu_seqlens_kv", &Arguments::cu_seqlens_kv, nb::arg().none())
      .def_rw("page_table", &Arguments::page_table, nb::arg().none())
      .def_rw("q_start", &Arguments::q_start, nb::arg().none())
      .def_rw("kv_start", &Arguments::kv_start, nb::arg().none())
      .def_rw("q_descale", &Arguments::q_descale, nb::arg().none())
      .def_rw("k_descale", &Arguments::k_descale, nb::arg().none())
      .def_rw("v_descale", &Arguments::v_descale, nb::arg().none())
      .def_rw("max_q_len", &Arguments::max_q_len, nb::arg().none())
      .def_rw("max_kv_len", &Arguments::max_kv_len, nb::arg().none())
      .def_rw("normalizer", &Arguments::normalizer)
      .def_rw("backend", &Arguments::backend)
      .def_rw("threads", &Arguments::threads)
      .def_rw("clamp_reads", &Arguments::clamp_reads)
      .def_rw("stream", &Arguments::stream);
}

}  // namespace

NB_MODULE(_core, module) {
  nb::register_exception_translator(translate);
  add_expressions(module);
  add_arguments(module);
  module.def("attention", &attention_of_arrays, "q"_a, "k"_a, "v"_a, "with_lse"_a, "arguments"_a);
  module.def("attention_into", &attention_into_arrays, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "arguments"_a);
  module.def("version", &version);
  module.def("plan_cache_counts", [] {
    const PlanCacheCounts counts = plan_cache_counts();
    return std::map<std::string, std::int64_t>{{"hits", counts.hits},
                                               {"misses", counts.misses},
                                               {"evictions", counts.evictions},
                                               {"plans", counts.plans},
                                               {"bytes", counts.bytes}};
  });
  module.def("clear_plan_cache", [] {
    const WithoutGil released;
    clear_plan_cache();
  });
}

}  // namespace heddle::python
