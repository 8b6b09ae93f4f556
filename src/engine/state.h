// What an AttentionPlan holds: the result of each stage.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "engine/explain.h"
#include "engine/mask_rows.h"
#include "heddle/attention.h"
#include "plan/plan.h"
#include "problem/run.h"

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

  nlohmann::ordered_json explanation() const {
    return engine::explanation(problem, block_mask.get(), mask_rows.place(), plan, kernel->facts());
  }
};

}  // namespace heddle
