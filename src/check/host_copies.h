// Copies of what a check reads, in host memory.
#pragma once

#include "base/on_host.h"
#include "heddle/backward.h"

namespace heddle::check {

/// Views of copies that `host` keeps; of the views that are on the CPU already, these.
AttentionOptions on_host(base::OnHost& host, const AttentionOptions& options);
BackwardTensors on_host(base::OnHost& host, const BackwardTensors& tensors);

/// A computed result as an output argument, the form that validation takes; nothing is written through it.
TensorView as_output(const ConstTensorView& view);

}  // namespace heddle::check
