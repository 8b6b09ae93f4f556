// Every decision, stage by stage, as one structure: explain_json() is it, explain() is its text.
#pragma once

#include <string>

#include "base/json_tree.h"
#include "heddle/attention.h"
#include "heddle/block_mask.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::engine {

/// Keys: problem, mods (each with the form that the plan gives it, and why), mask (null: everything attends; found:
/// where its rows were, of a mask that reads a GPU's memory), plan, predicted (null: the family
/// has no cost model; rates: those of the machine that it was reckoned with, null if there is no single one), rejected,
/// kernel (Kernel::facts(); null: none was prepared).
base::JsonTree explanation(const problem::AttentionProblem& problem, const BlockMask* block_mask,
                           const std::string& mask_found, const plan::Plan& plan, const base::JsonTree& kernel);

/// The key `plan_cache` of a cached plan's explanation.
base::JsonTree to_json(const PlanCacheCounts& counts);

/// A paragraph a stage, its name in the first column.
std::string to_text(const base::JsonTree& explanation);

}  // namespace heddle::engine
