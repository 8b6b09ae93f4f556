// The values behind the leaves, params and captures of mods, for tests.
#pragma once

#include "backend/cuda/emit/expression_text.h"
#include "shared/forward_sm90.h"

namespace heddle::cuda::emit::test {

/// As a launch packs them, but for the sequence's lengths; captures stay where they are, so the tensors must outlive
/// it.
shared::ModValues bound_values(const ModLayout& layout, const Bindings& bindings);

}  // namespace heddle::cuda::emit::test
