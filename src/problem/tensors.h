// q, k, v, o and lse: ranks, dtypes, devices, shapes and strides that fit each other, and memory that does not overlap.
#pragma once

#include <string_view>

#include "problem/problem.h"

namespace heddle::problem {

/// Requires a floating tensor with `rank` axes, extents that fit i32, and a unit last stride.
void check_rows(std::string_view name, const ConstTensorView& view, int rank, std::string_view axes);

/// Columns of q_rest or of k_rest; 0: it is not given.
std::int64_t rest_dim(const std::optional<ConstTensorView>& rest);

/// Shapes, dtypes and strides of the caller's o, lse, lse_rest and max_scores against what the inputs ask for. Memory
/// is not looked at.
void check_outputs(const AttentionTensors& tensors, const Outputs& expected);

}  // namespace heddle::problem
