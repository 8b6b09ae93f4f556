// The mods of an attention, their names' values, and the block mask that came with them.
#pragma once

#include "problem/problem.h"

namespace heddle::problem {

/// Fills the problem's score_mod, mask_mod, weight_mod, captures and params. Everything else of the problem is set.
void resolve_mods(AttentionProblem& problem, const AttentionOptions& options);

}  // namespace heddle::problem
