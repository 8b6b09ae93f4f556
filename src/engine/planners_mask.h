// The block mask of an attention, as its planner asks for it.
#pragma once

#include <memory>
#include <string>

#include "backend/device.h"
#include "base/on_host.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::engine {

/// The values that the mask reads, in host memory: what is elsewhere is copied, and `host` keeps the copies.
Bindings mask_bindings(const Expr& mask, const Bindings& given, base::OnHost& host);

/// Gives rows in blocks of any size: the caller's block mask, checked; else built from the mask; null without one. The
/// rows of a mask that reads a GPU's memory are found there or, if that is impossible, on the host from copies.
class MaskRows {
 public:
  std::shared_ptr<const BlockMask> operator()(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                              BlockSize block);
  /// The rows of a plan for other params and captures.
  std::shared_ptr<const BlockMask> updated(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                           const BlockMask& rows, const Bindings& bindings);

  /// The device ("on" and its name) that found the rows of a mask which reads a GPU's memory, or lengths that only the
  /// GPU knows. Empty for others.
  const std::string& found() const { return found_; }

 private:
  std::shared_ptr<const BlockMask> build(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                         const Bindings& bindings, BlockSize block);

  std::string found_;
  std::shared_ptr<backend::DeviceMaskRows> on_device_;
  std::shared_ptr<const BlockMask> last_;  // several kernels ask for the same blocks
};

}  // namespace heddle::engine
