#include "backward_tensors.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <utility>

namespace heddle::python {
namespace {

using namespace nb::literals;

bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

bool is_asked_for(const Target& target) {
  const bool* wanted = std::get_if<bool>(&target);
  return wanted == nullptr || *wanted;
}

/// The given array, or a view without memory of that shape and dtype.
TensorView view_of(const Target& target, const std::string& name, DType dtype, const Dims& shape,
                   const Device& device) {
  if (const Array* array = std::get_if<Array>(&target)) return view_of(*array, name.c_str());
  return {nullptr, dtype, shape, device};
}

std::optional<TensorView> like(const Target& target, const char* name, const ConstTensorView& of) {
  if (!is_asked_for(target)) return {};
  return view_of(target, name, is_fp8(of.dtype) ? DType::bf16 : of.dtype, of.shape, of.device);
}

DType of_capture(DType own) {
  const bool has_gradients_type = own == DType::f64 || own == DType::f32 || own == DType::f16 || own == DType::bf16;
  return has_gradients_type ? own : DType::f32;
}

nb::object to_object(const std::optional<Tensor>& tensor) {
  return tensor ? nb::object(to_python(*tensor)) : nb::none();
}

nb::dict to_dict(const std::map<std::string, Tensor>& named) {
  nb::dict result;
  for (const auto& [name, tensor] : named) result[name.c_str()] = to_python(tensor);
  return result;
}

}  // namespace

BackwardTensors tensors_of(const BackwardInputs& inputs, const Targets& targets, const AttentionOptions& options) {
  BackwardTensors tensors;
  tensors.q = const_view_of(inputs.q, "q");
  tensors.k = const_view_of(inputs.k, "k");
  tensors.v = const_view_of(inputs.v, "v");
  tensors.o = const_view_of(inputs.o, "o");
  tensors.lse = given_view(inputs.lse, "lse");
  tensors.d_o = const_view_of(inputs.d_o, "d_o");
  tensors.d_lse = given_view(inputs.d_lse, "d_lse");
  tensors.lse_rest = given_view(inputs.lse_rest, "lse_rest");

  const Device device = tensors.q.device;
  const DType real = tensors.q.dtype == DType::f64 ? DType::f64 : DType::f32;
  tensors.dq = like(targets.q, "dq", tensors.q);
  tensors.dk = like(targets.k, "dk", tensors.k);
  tensors.dv = like(targets.v, "dv", tensors.v);
  if (is_asked_for(targets.sinks)) {
    const Dims shape = options.sinks ? options.sinks->shape : Dims();
    tensors.d_sinks = view_of(targets.sinks, "d_sinks", real, shape, device);
  }
  for (const auto& [name, target] : targets.captures) {
    if (!is_asked_for(target)) continue;
    const auto found = options.bindings.captures.find(name);
    const bool is_there = found != options.bindings.captures.end();
    tensors.d_captures[name] =
        view_of(target, "d_captures['" + name + "']", is_there ? of_capture(found->second.dtype) : real,
                is_there ? found->second.shape : Dims(), device);
  }
  for (const auto& [name, target] : targets.params) {
    if (is_asked_for(target)) {
      tensors.d_params[name] = view_of(target, "d_params['" + name + "']", real, Dims(), device);
    }
  }
  return tensors;
}

MadeGradients::MadeGradients(BackwardTensors& tensors)
    : dq_(made(tensors.dq)),
      dk_(made(tensors.dk)),
      dv_(made(tensors.dv)),
      d_sinks_(made(tensors.d_sinks)),
      d_captures_(made(tensors.d_captures)),
      d_params_(made(tensors.d_params)) {}

std::optional<Tensor> MadeGradients::made(std::optional<TensorView>& view) {
  if (!view || view->data != nullptr) return {};
  const Tensor tensor = Tensor::empty_on(view->device, view->dtype, view->shape);
  view = tensor;
  return tensor;
}

MadeGradients::Named MadeGradients::made(NamedViews& views) {
  Named named;
  for (auto& [name, view] : views) {
    std::optional<TensorView> one = view;
    if (const std::optional<Tensor> tensor = made(one)) {
      named.emplace(name, *tensor);
      view = *one;
    }
  }
  return named;
}

MadeTuple MadeGradients::to_python() const {
  return nb::borrow<MadeTuple>(nb::make_tuple(to_object(dq_), to_object(dk_), to_object(dv_), to_object(d_sinks_),
                                              to_dict(d_captures_), to_dict(d_params_)));
}

void add_backward_tensors(nb::module_& module) {
  nb::class_<BackwardInputs>(module, "BackwardInputs", "What a backward reads beside its options.")
      .def(nb::init<const ReadOnly&, const ReadOnly&, const ReadOnly&, const ReadOnly&, const Given&, const ReadOnly&,
                    const Given&, const Given&>(),
           "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "d_o"_a, "d_lse"_a.none(), "lse_rest"_a.none() = nb::none());
  nb::class_<Targets>(module, "Targets", "The gradients that are asked for: False, True, or where they are written.")
      .def(nb::init<>())
      .def_rw("q", &Targets::q)
      .def_rw("k", &Targets::k)
      .def_rw("v", &Targets::v)
      .def_rw("sinks", &Targets::sinks)
      .def_rw("captures", &Targets::captures)
      .def_rw("params", &Targets::params);
}

}  // namespace heddle::python
