// The values behind the leaves, params and captures of mods, for tests.
#pragma once

#include "backend/device_text/expression_text.h"
#include "shared/mod_values.h"

namespace heddle::device_text::test {

/// Packs the values as a launch does, except for the sequence's lengths; captures stay where they are, so the tensors
/// must outlive it.
shared::ModValues bound_values(const ModLayout& layout, const Bindings& bindings);

}  // namespace heddle::device_text::test
