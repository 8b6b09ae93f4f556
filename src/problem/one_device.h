// Devices of an attention's tensors: q, k, v, o and lse on one device, the rest there or on the CPU.
#pragma once

#include <string_view>

#include "problem/problem.h"

namespace heddle::problem {

/// The device of q, k, v, o and lse. Throws invalid_argument when they are not all on one.
Device device_of(const AttentionTensors& tensors);

/// For what the host reads while planning.
void check_on_cpu(std::string_view name, const ConstTensorView& view);
/// For what a run reads on the attention's device.
void check_beside(std::string_view name, const ConstTensorView& view, const Device& device);

}  // namespace heddle::problem
