// The block mask of an attention, as its planner asks for it.
#pragma once

#include <memory>
#include <string>

#include "backend/device.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::engine {

/// Gives rows in blocks of any size: the caller's block mask, checked; else built from the mask; null without one. A
/// mask that reads a GPU's memory is built there, or, when it cannot be, on the host from copies of what it reads.
class MaskRows {
 public:
  std::shared_ptr<const BlockMask> operator()(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                              BlockSize block);
  /// The rows of a plan for other params and captures.
  std::shared_ptr<const BlockMask> updated(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                           const BlockMask& rows, const Bindings& bindings);

  /// Where the rows of a mask that reads a GPU's memory, or what only that says of the sequences, were found: "on"
  /// and the device's name. Empty for others.
  const std::string& place() const { return place_; }

 private:
  std::shared_ptr<const BlockMask> build(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                         const Bindings& bindings, BlockSize block);

  std::string place_;
  std::shared_ptr<backend::DeviceMaskRows> on_device_;
  std::shared_ptr<const BlockMask> last_;  // several kernels ask for the same blocks
};

}  // namespace heddle::engine
