// Shared by the one-call functions of both passes.
#pragma once

#include "engine/plan_cache.h"
#include "engine/workspaces.h"
#include "heddle/attention.h"

namespace heddle::engine {

/// Throws if the stream is being captured: a graph that records the run would read the plan's lists and the workspace
/// long after both may have gone. `function` names the caller.
void check_not_capturing(const Device& device, void* stream, std::string_view function);

/// Runs a plan of the plan cache in a kept workspace.
template <class Tensors>
void run_kept(const AttentionPlan& plan, const Tensors& tensors, const AttentionOptions& options) {
  const Workspaces::Lease workspace(workspaces(), tensors.q.device, options.stream, plan.workspace_bytes());
  PlanCache::run(plan, tensors, {.workspace = workspace.data(), .stream = options.stream, .options = &options});
}

}  // namespace heddle::engine
