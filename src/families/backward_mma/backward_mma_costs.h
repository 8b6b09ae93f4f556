// How long the passes of backward_mma take, and the kernels around them. Measured on one H100 without mods; on other
// chips a prediction from the numbers of the chip.
#pragma once

#include <functional>

#include "backend/portable/portable_rates.h"
#include "families/backward_mma/backward_mma.h"
#include "plan/plan.h"
#include "plan/tiles/backward_schedule.h"
#include "problem/problem.h"

namespace heddle::plan {

/// Something like these kernels was measured, on this chip or on another one. Not: f64, 8 bits, head dimensions above
/// 128, dk or dv alone, gradients of captures and params, tensors that serve all sequences. `rates` null: nothing is
/// known of the chip.
bool has_known_times(const BackwardMmaKernels& kernels, const PortableRates* rates);

/// The time of one run of kernels with known times. `schedule_of` gives the schedule of a pass. Mods are not counted,
/// except for the blocks that a mask leaves out.
Prediction backward_mma_prediction(
    const problem::AttentionProblem& problem, const BackwardMmaKernels& kernels,
    const std::function<const BackwardSchedule&(const shared::BackwardMmaConfig&)>& schedule_of, int multiprocessors,
    const PortableRates& rates);

}  // namespace heddle::plan
