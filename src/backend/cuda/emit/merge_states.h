// The kernel of merge_states as a source.
#pragma once

#include <string>

#include "backend/cuda/jit/jit.h"
#include "shared/merge_states.h"

namespace heddle::cuda::emit {

/// `parts`: what all parts' o are stored as, or mixed.
jit::Source merge_states(shared::StorageType parts, shared::StorageType output, const std::string& architecture);

}  // namespace heddle::cuda::emit
