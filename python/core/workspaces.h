// The workspace of a plan's run in Python.
#pragma once

#include <cstdint>
#include <optional>

#include "tensors.h"

namespace heddle::python {

/// `bytes` of new memory, at least 1.
Tensor new_workspace(const Device& device, std::int64_t bytes);
/// The memory of the caller's workspace; null without one. Throws for one that has too few bytes, or elsewhere.
void* workspace_of(const std::optional<Array>& given, const Device& device, std::int64_t bytes);

}  // namespace heddle::python
