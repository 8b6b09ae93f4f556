// A call of torch's tensors that autograd records: heddle._core.RecordedCall. It makes the forward, and later the
// backward of tensors that autograd kept; autograd's own part stands in heddle/torch/_recorded.py.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "heddle/attention.h"
#include "heddle/backward.h"
#include "tensors.h"
#include "torch_names.h"

namespace heddle::python {

using TensorTuple = nb::typed<nb::tuple, nb::any, nb::ellipsis>;
using Settings = nb::typed<nb::dict, nb::str, nb::any>;

class RecordedCall {
 public:
  /// `settings`: the call's options, by name. `lists`: the heddle.BlockMask of a mask of lists, else None. Packed rows
  /// have three axes, and their lengths are in `arguments`.
  RecordedCall(std::shared_ptr<const TorchNames> torch, const std::array<const ReadOnly*, 3>& inputs,
               Arguments&& arguments, Settings settings, nb::object lists, bool with_lse);

  /// Whether calls of q, k, v and these captures are made here. Python makes the others, which need copies or sums.
  static bool takes(const std::array<const ReadOnly*, 3>& inputs, const NamedValues& values);

  /// q, k, v, the captures and the lengths, before forward(). Behind it the call keeps no tensor alive.
  TensorTuple tensors() const;
  /// Computes, and gives what a backward reads: out, lse, lse_rest ([lse, lse_rest] in one tensor unless the call has
  /// lse), then tensors(). Throws what the library refuses.
  /// `inputs`: those of tensors() that may have a gradient, all but the lengths.
  TensorTuple forward(const TensorTuple& inputs);
  /// (None, gradients of the inputs): a gradient is None unless `needs`, whose first entry is no tensor's, asks for it.
  /// `saved`: what forward() gave. None with nothing done if Python has to make the call.
  nb::any backward(const TensorTuple& saved, nb::handle d_out, nb::handle d_lse, const TensorTuple& needs,
                   bool deterministic) const;

  const Arguments& arguments() const { return arguments_; }
  const std::vector<std::string>& names() const { return names_; }
  /// The names of the lengths, behind the captures among the tensors.
  std::vector<std::string> lengths() const;
  bool is_packed() const { return is_packed_; }
  Settings settings() const { return settings_; }
  nb::any lists() const { return nb::borrow<nb::any>(lists_); }
  bool with_lse() const { return with_lse_; }
  const char* device() const { return is_on_gpu_ ? "cuda" : "cpu"; }

 private:
  class Gradients;
  struct Lengths;

  static const std::array<Lengths, 3> kLengths;
  /// A view of rows as the library has them.
  ConstTensorView rows_of(const ReadOnly& array, const char* name) const;
  TensorView rows_of(const TensorView& view) const;
  template <class View>
  View statistics_of(const View& view) const;
  std::size_t inputs_count() const { return 3 + names_.size(); }
  std::size_t first_tensor() const { return with_lse_ ? 3 : 2; }  // in what is saved
  bool take_all(const nb::handle* tensors, std::vector<ReadOnly>& arrays) const;
  AttentionOptions options_for(const std::vector<ReadOnly>& arrays) const;
  bool take_statistics(const nb::handle* saved, std::array<ReadOnly, 2>& arrays, BackwardTensors& tensors) const;
  bool make_gradients(const nb::handle* of, const nb::tuple& needs, Gradients& made, BackwardTensors& tensors) const;

  std::shared_ptr<const TorchNames> torch_;
  Arguments arguments_;                  // without captures and lengths
  std::vector<std::string> names_;       // of the captures
  std::vector<const Lengths*> lengths_;  // that are given
  std::vector<ReadOnly> arrays_;         // q, k, v, the captures and the lengths, until forward()
  Settings settings_;
  nb::object lists_;
  bool with_lse_, is_on_gpu_, is_packed_;
};

void add_recorded_calls(nb::module_& module);

}  // namespace heddle::python
