// The options of a call, as Python gives them: heddle._core.Arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "heddle/attention.h"
#include "tensors.h"

namespace heddle::python {

/// Lets Python's other threads run until the end of its scope, and marks this thread as one that may raise what a
/// signal asks for.
class WithoutGil {
 public:
  WithoutGil() : outer_(computes_) { computes_ = true; }
  ~WithoutGil() { computes_ = outer_; }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  /// Whether this thread came from Python and is in such a scope. Threads of the library's own are not.
  static bool computes() { return computes_; }

 private:
  static thread_local bool computes_;
  bool outer_;
  nb::gil_scoped_release released_;
};

/// Captures and params by name, as Python gives them; the arrays stay alive while this does.
struct NamedValues {
  std::map<std::string, ReadOnly> captures;
  std::map<std::string, ParamValue> params;
};
/// Views of them. Throws for arrays that the library cannot read, by name.
Bindings bindings_of(const NamedValues& given);

/// A call's options as Python gives them; it keeps the arrays alive.
struct Arguments {
  Expr score_mod, mask_mod, weight_mod;
  NamedValues values;
  std::optional<double> scale;
  std::string normalizer = "softmax", backend = "automatic", tuning = "automatic";
  std::shared_ptr<const BlockMask> block_mask;
  std::uint64_t mask_version = 0;
  int threads = 0;
  std::uintptr_t stream = 0;
  // The rows of options.def: sinks, q_lengths, ..., max_q_len, max_kv_len, clamp_reads, deterministic.
#define HEDDLE_TENSOR_OPTION(name, group, help) Given name;
#define HEDDLE_LENGTHS_OPTION(name, group, help) Given name;
#define HEDDLE_COUNT_OPTION(name) std::optional<std::int64_t> name;
#define HEDDLE_FLAG_OPTION(name, shown, help) bool name = false;
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) bool name = false;
#include "heddle/options.def"
};

/// Views of the arguments, which must outlive them. A run of these options on the CPU stops at Ctrl-C.
AttentionOptions options_of(const Arguments& given);

void add_arguments(nb::module_& module);

}  // namespace heddle::python
