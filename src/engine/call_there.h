// A call on a GPU that need not be here, as far as planning goes.
#pragma once

#include <string_view>
#include <vector>

#include "device/known_gpus.h"
#include "engine/planners_mask.h"
#include "plan/plan.h"
#include "problem/check_run.h"

namespace heddle::engine {

/// Views that claim to be on the GPU; block masks are built from the tensors where they really are.
class CallThere {
 public:
  /// Tensors: AttentionTensors, or BackwardTensors. Throws as planning on that GPU would, and as with_known_gpu().
  template <class Tensors>
  CallThere(std::string_view gpu, const Tensors& tensors, const AttentionOptions& options);
  CallThere(const CallThere&) = delete;
  CallThere& operator=(const CallThere&) = delete;

  /// Refers to this object.
  plan::Request request() const;
  /// The rows of the mask in blocks of any size.
  std::shared_ptr<const BlockMask> mask_rows(BlockSize block) { return rows_(problem_, options_here_, block); }

  const device::KnownMachine& target() const { return target_; }
  const problem::AttentionProblem& problem() const { return problem_; }
  const AttentionOptions& options() const { return options_there_; }
  /// As MaskRows::found().
  const std::string& mask_found() const { return rows_.found(); }

 private:
  device::KnownMachine target_;
  AttentionOptions options_here_, options_there_;
  problem::AttentionProblem problem_;
  problem::PlannedTensors planned_;
  MaskRows rows_;
};

}  // namespace heddle::engine
