// Sources of kernels beside attention, the same for every vendor: what follows the vendor's own first lines.
#pragma once

#include <string>

#include "shared/merge_states.h"

namespace heddle::gpu {

struct KernelText {
  std::string name, text;
};

/// `parts`: what all parts' o are stored as, or mixed.
KernelText merge_states_text(shared::StorageType parts, shared::StorageType output);

/// The kernels that run before an attention kernel where lengths are on the device: text that depends on nothing.
KernelText sequences_text();

}  // namespace heddle::gpu
