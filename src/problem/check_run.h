// Checks of each run of a plan. Nothing here allocates unless it refuses.
#pragma once

#include <optional>

#include "problem/overlap.h"
#include "problem/problem.h"

namespace heddle::problem {

/// The planned tensors, with what a run's checks need to know of them. Their memory may be gone.
struct PlannedTensors {
  AttentionTensors tensors;  // of a backward: what it shares with its forward
  Footprint q, k, v, o, lse;
  std::optional<BackwardTensors> backward;
  Footprint d_o, d_lse;

  PlannedTensors() = default;
  explicit PlannedTensors(const AttentionTensors& planned);
  explicit PlannedTensors(const BackwardTensors& planned);
};

/// A run's tensors must fit the plan: same shapes, dtypes, devices and strides, memory present and aligned to its
/// elements, no overlap of o, lse, lse_rest or max_scores with a tensor that the run reads or with each other.
void validate_run(const AttentionProblem& problem, const PlannedTensors& planned, const AttentionTensors& given,
                  const AttentionOptions& options, const Bindings& bindings);
/// For a backward: o and lse are inputs, gradients are outputs, and exactly the planned gradients are there.
void validate_run(const AttentionProblem& problem, const PlannedTensors& planned, const BackwardTensors& given,
                  const AttentionOptions& options, const Bindings& bindings);

/// A run's own options must fit the planned ones: sinks, descales, the page table, and lengths on a GPU are there or
/// not as planned, with the planned shapes, strides, dtypes and devices.
void check_planned_options(const AttentionProblem& problem, const AttentionOptions& planned,
                           const AttentionOptions& given);

/// Whether each name that the mods read has a value with the planned type, shape, strides and device. What
/// validate_bindings found for the planned values then holds for the given ones (unless reads_depend_on_values).
bool fits_planned(const AttentionProblem& problem, const Bindings& planned, const Bindings& given);

}  // namespace heddle::problem
