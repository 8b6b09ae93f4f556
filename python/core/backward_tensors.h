// The tensors of a backward, as Python gives them, and the gradients that it asks for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>

#include "heddle/attention.h"
#include "heddle/backward.h"
#include "tensors.h"

namespace heddle::python {

struct BackwardInputs {
  ReadOnly q, k, v, o;
  Given lse;
  ReadOnly d_o;
  Given d_lse, lse_rest;
};

/// False: not asked for. True: asked for, in a new tensor. Else where it is written.
using Target = std::variant<bool, Array>;

struct Targets {
  Target q = false, k = false, v = false, sinks = false;
  std::map<std::string, Target> captures, params;
};

/// Views of the inputs and of what is asked for. A gradient that is to be made has its shape and dtype, no memory.
/// A gradient of a tensor that is not given is passed on: the library says what is wrong.
BackwardTensors tensors_of(const BackwardInputs& inputs, const Targets& targets, const AttentionOptions& options);

using MadeTuple = nb::typed<nb::tuple, nb::any, nb::ellipsis>;

/// The memory that Python did not give.
class MadeGradients {
 public:
  /// Allocates for each gradient without memory, and points its view there.
  explicit MadeGradients(BackwardTensors& tensors);
  /// (dq, dk, dv, d_sinks, {name: of a capture}, {name: of a param}): what was made, None for the rest.
  MadeTuple to_python() const;

 private:
  using Named = std::map<std::string, Tensor>;
  static std::optional<Tensor> made(std::optional<TensorView>& view);
  static Named made(NamedViews& views);

  std::optional<Tensor> dq_, dk_, dv_, d_sinks_;
  Named d_captures_, d_params_;
};

void add_backward_tensors(nb::module_& module);

}  // namespace heddle::python
