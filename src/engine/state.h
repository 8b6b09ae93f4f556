// State of an AttentionPlan: the result of each stage.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "base/json_tree.h"
#include "engine/plan_use.h"
#include "engine/planners_mask.h"
#include "heddle/attention.h"
#include "heddle/error.h"
#include "plan/plan.h"
#include "problem/check_run.h"

namespace heddle {

struct AttentionPlan::State {
  problem::PlannedTensors planned;
  AttentionOptions options;
  problem::AttentionProblem problem;
  bool reads_depend_on_values = false;  // capture indices must be proven again by each run
  plan::Plan plan;
  engine::MaskRows mask_rows;
  std::shared_ptr<const BlockMask> block_mask;  // null: everything attends
  std::unique_ptr<backend::Kernel> kernel;
  mutable engine::PlanUse use;
  bool cached = false;  // the plan cache hands it to several callers: update() is refused

  /// Plans, and reports the plan or the refusal. Tensors: AttentionTensors, or BackwardTensors for a backward.
  template <class Tensors>
  void plan_for(const Tensors& tensors, const AttentionOptions& options);
  template <class Tensors>
  void make_plan(const Tensors& tensors, const AttentionOptions& options);
  /// Runs, and reports a refusal. `mask_is_current`: the caller has asked the block mask already.
  template <class Tensors>
  void run(const Tensors& tensors, const RunOptions& run, bool mask_is_current) const;
  template <class Tensors>
  void check_and_launch(const Tensors& tensors, const RunOptions& run, bool mask_is_current) const;
  plan::Request request() const;

  base::JsonTree explanation() const;
};

namespace engine {
/// A plan's state. Throws Error(invalid_argument) for the null of a plan that was moved from.
template <class State>
State& state_in(const std::shared_ptr<State>& state) {
  if (state == nullptr) {
    throw Error(ErrorCode::invalid_argument, "the plan was moved from; the plan that it was moved to is accepted");
  }
  return *state;
}
}  // namespace engine

}  // namespace heddle
