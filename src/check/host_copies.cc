#include "check/host_copies.h"

#include "problem/option_views.h"

namespace heddle::check {

TensorView as_output(const ConstTensorView& view) {
  return TensorView(const_cast<void*>(view.data), view.dtype, view.shape, view.strides, view.device);
}

AttentionOptions on_host(base::OnHost& host, const AttentionOptions& options) {
  AttentionOptions own = options;
  own.bindings = host.bindings(options.bindings);
  for (const auto& [name, member] : problem::kTensorOptions) own.*member = host.view(options.*member);
  for (const auto& [name, member] : problem::kLengthViews) own.*member = host.view(options.*member);
  return own;
}

BackwardTensors on_host(base::OnHost& host, const BackwardTensors& tensors) {
  BackwardTensors own = tensors;
  for (auto member :
       {&BackwardTensors::q, &BackwardTensors::k, &BackwardTensors::v, &BackwardTensors::o, &BackwardTensors::d_o}) {
    own.*member = host.view(tensors.*member);
  }
  own.lse = host.view(tensors.lse);
  own.lse_rest = host.view(tensors.lse_rest);
  own.d_lse = host.view(tensors.d_lse);
  for (auto member : {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv, &BackwardTensors::d_sinks}) {
    if (tensors.*member) own.*member = as_output(host.view(ConstTensorView(*(tensors.*member))));
  }
  for (NamedViews* gradients : {&own.d_captures, &own.d_params}) {
    for (auto& [name, view] : *gradients) view = as_output(host.view(ConstTensorView(view)));
  }
  return own;
}

}  // namespace heddle::check
