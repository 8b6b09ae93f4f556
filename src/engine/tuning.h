// The choice among plans that would serve: the planner's first, or the one that a measurement found fastest.
#pragma once

#include "engine/prepare.h"
#include "heddle/attention.h"
#include "plan/plan.h"

namespace heddle::engine {

/// The options' tuning, else the environment's; never automatic. Throws invalid_argument if the variable has an unknown
/// value.
Tuning tuning_of(const AttentionOptions& options);

/// The chosen plan, prepared, with what became of tuning. Throws as plan::choose and prepare_first.
Prepared prepare_chosen(const plan::Request& request, const plan::RowsOf& rows_of, const Prepare& prepare);

}  // namespace heddle::engine
