// What each run of a plan is checked for. Nothing here allocates unless it refuses.
#pragma once

#include <optional>

#include "problem/overlap.h"
#include "problem/problem.h"

namespace heddle::problem {

/// The planned tensors, with what a run's checks need to know of them. Their memory may be gone.
struct PlannedTensors {
  AttentionTensors tensors;
  Footprint q, k, v, o, lse;

  PlannedTensors() = default;
  explicit PlannedTensors(const AttentionTensors& planned);
};

/// What a run may change must still fit the plan: same shapes, dtypes, devices and strides, memory present and aligned
/// to its elements, no overlap of o or lse with what the run reads or with each other.
void validate_run(const AttentionProblem& problem, const PlannedTensors& planned, const AttentionTensors& given,
                  const AttentionOptions& options, const Bindings& bindings);

/// What a run's own options may change must still fit the planned ones: sinks, descales and the page table, and lengths
/// on a GPU, are there or not as planned, with the planned shapes, strides, dtypes and devices.
void check_planned_options(const AttentionProblem& problem, const AttentionOptions& planned,
                           const AttentionOptions& given);

/// True when each name that the mods read has a value of the planned one's type, shape, strides and device: what
/// validate_bindings found for those holds for these (unless reads_depend_on_values).
bool fits_planned(const AttentionProblem& problem, const Bindings& planned, const Bindings& given);

}  // namespace heddle::problem
