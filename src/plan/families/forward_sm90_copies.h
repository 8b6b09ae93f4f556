// What TMA takes of a tensor; and copies in rows that it takes, which each run of the Hopper forward makes in its
// workspace.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::plan {

inline constexpr std::int64_t kTmaBytes = 16;  // divide addresses and strides of what it takes

/// Why TMA does not take the tensor, by its strides and its address (null: as far aligned as may be): "its strides are
/// ..."; empty where it does. Strides of axes with one element say nothing. The last stride is not looked at.
std::string tma_refuses(const ConstTensorView& view);

/// A tensor of four axes in rows that TMA takes; what has a stride of 0 stays shared.
TensorCopy copy_for(const ConstTensorView& tensor);
/// The copy in that workspace.
ConstTensorView copy_of(const TensorCopy& copy, DType dtype, const void* workspace);

/// That they take of a workspace.
std::int64_t room_of(const TensorCopies& copies);
/// Puts copies, whose offsets count from the first one's, behind what else stands in the plan's workspace, and what
/// they cost into its prediction.
void add_copies(Plan& plan, const problem::AttentionProblem& problem, const TensorCopies& copies);

}  // namespace heddle::plan
