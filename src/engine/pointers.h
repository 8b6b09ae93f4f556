// Is a run's memory where its views say?
#pragma once

#include <string_view>

#include "backend/device.h"
#include "problem/problem.h"

namespace heddle::engine {

/// The kind of a device that a tensor is on. Throws invalid_argument, naming the tensor, for one that this build does
/// not compute on.
const backend::DeviceInterface& device_kind_of(std::string_view name, const Device& device);

/// Asks the device's driver where a tensor's memory is. Throws invalid_argument, naming it (`of`: "capture" and the
/// like, before its name), when that is not on this device.
void check_pointer(std::string_view name, const ConstTensorView& view, const Device& device, std::string_view of = {});

/// Asks the driver about each tensor, those of `options` too, lists of lengths among them, and capture that a run on a
/// GPU reads or writes. Throws invalid_argument, naming the first that is elsewhere: the kernel would fault there, long
/// after the run returned. Allocates nothing else.
void check_pointers(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                    const AttentionOptions& options, const Bindings& bindings);
/// Checks a backward's pointers.
void check_pointers(const problem::AttentionProblem& problem, const BackwardTensors& tensors,
                    const AttentionOptions& options, const Bindings& bindings);
/// Checks a run's workspace.
void check_workspace(const void* workspace, const Device& device);

}  // namespace heddle::engine
