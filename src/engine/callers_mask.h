// The caller's block mask, where kernels need not follow it.
#pragma once

#include <memory>

#include "problem/problem.h"

namespace heddle::engine {

/// The block mask that a plan follows: the caller's, or null. All kernels of a GPU follow blocks of 64 queries and
/// keys, or of a multiple. A mask in others that says no more than its mask_mod is left out, and the planner builds
/// rows in blocks that its kernels take: any mask that was built from the mask_mod, and lists that skip and fill just
/// what the mask_mod does. Lists whose mask_mod reads captures or params are followed: those may change, and the lists
/// would not. Throws Error(invalid_argument) if the mask was built from other values than `options` has.
std::shared_ptr<const BlockMask> followed_mask(const problem::AttentionProblem& problem,
                                               const AttentionOptions& options);

}  // namespace heddle::engine
