// How long kernels of forward_mma take that have many rows. Measured on one H100 without mods; on other chips a
// prediction from the numbers of the chip.
#pragma once

#include <optional>

#include "backend/portable/portable_rates.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "plan/plan.h"
#include "plan/tiles/key_rows.h"
#include "plan/tiles/schedule.h"
#include "problem/problem.h"

namespace heddle::plan {

/// Costs of the parts of a tile, in clocks of a multiprocessor that is full of such tiles. `rates` null: of one like an
/// H100's, which is right for the order of tiles alone.
TileClocks forward_mma_clocks(const shared::ForwardMmaConfig& config, const PortableRates* rates);

/// The time of one run. `schedule` is by forward_mma_clocks(). Empty where nothing like it was measured: few rows,
/// pages, 8 bits, f64, values in slices, plain multiply-adds of few rows. Mods are not counted, except for the blocks
/// that a mask leaves out and those that it cuts.
std::optional<Prediction> forward_mma_prediction(const problem::AttentionProblem& problem,
                                                 const shared::ForwardMmaConfig& config, const TileSchedule& schedule,
                                                 int multiprocessors, const PortableRates* rates);

}  // namespace heddle::plan
