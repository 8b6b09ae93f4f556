// The tensors of a call: q, k, v, and where its results go.
#pragma once

#include <optional>

#include "heddle/attention.h"
#include "tensors.h"

namespace heddle::python {

using GivenOut = std::optional<Array>;

/// Views of a call's tensors. Those that are not given have the shapes of results, and no memory.
AttentionTensors tensors_of(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const GivenOut& o,
                            const GivenOut& lse, bool with_lse = false, const GivenOut& max_scores = {},
                            const GivenOut& lse_rest = {});

}  // namespace heddle::python
