// How long kernels take on the machine at hand.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"

namespace heddle::tune {

/// A kernel that was prepared.
struct Contender {
  const plan::Plan* plan;
  const BlockMask* block_mask;
  const backend::Kernel* kernel;
};

/// Seconds of one run of each, medians over rounds in which they take turns, over tensors of their own (StandIn). Runs
/// of one kernel follow each other without a pause, so small tensors stay in caches. Waits for the device. Throws
/// Error(out_of_memory), and what launches throw.
std::vector<double> measure(const plan::Request& request, std::span<const Contender> contenders);

/// Runs a contender `runs` times and returns the seconds of all runs together.
using TimedRuns = std::function<double(std::size_t contender, int runs)>;
/// Runs the contenders in turns and returns a time for each. A contender far behind after the first round is not run
/// again.
std::vector<double> measure_in_turns(std::size_t contenders, const TimedRuns& run);

}  // namespace heddle::tune
