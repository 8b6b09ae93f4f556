// The configuration of backward_sm90 that computes a problem.
#pragma once

#include <vector>

#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/config_fields.h"
#include "plan/mods/backward_mods.h"
#include "plan/setting.h"
#include "problem/problem.h"

namespace heddle::plan {

/// Types of gradients, and how they are stored, are set by config_for_gradients().
shared::BackwardSm90Config backward_sm90_config(const problem::AttentionProblem& problem, const BackwardMods& mods);

/// Adds what these tensors decide.
shared::BackwardSm90Config with_gradients(shared::BackwardSm90Config config, const BackwardTensors& tensors);

/// The fields that are not at their default, and the shared memory of a CTA, in bytes.
std::vector<Setting> backward_sm90_settings(const shared::BackwardSm90Config& config);

}  // namespace heddle::plan

#define HEDDLE_CONFIG BackwardSm90Config
#define HEDDLE_CONFIG_FIELDS "families/backward_sm90/shared/backward_sm90_config.def"
#include "plan/config_fields.inc"
