// The block mask of an attention, as its planner asks for it.
#pragma once

#include <memory>
#include <optional>

#include "base/on_host.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::engine {

/// What the mask reads, as the host can read it.
Bindings mask_bindings(const Expr& mask, const Bindings& given, base::OnHost& host);

/// Gives rows in blocks of any size: the caller's block mask, checked; else built from the mask; null without one. What
/// it was made from must outlive it.
class MaskRows {
 public:
  MaskRows(const problem::AttentionProblem& problem, const AttentionOptions& options)
      : problem_(problem), options_(options) {}
  std::shared_ptr<const BlockMask> operator()(BlockSize block);

 private:
  const problem::AttentionProblem& problem_;
  const AttentionOptions& options_;
  base::OnHost host_;
  std::optional<Bindings> on_host_;
  std::shared_ptr<const BlockMask> last_;  // several kernels ask for the same blocks
};

}  // namespace heddle::engine
