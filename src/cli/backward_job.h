// The backward of an attention that the command line asked for, loaded and ready to plan.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "heddle/backward.h"
#include "job.h"

namespace heddle::cli {

/// Everything is where q is.
struct BackwardJob {
  AttentionJob attention;
  AttentionResult forward;     // o and lse: given, or room for them
  bool forward_given = false;  // else the forward is run first
  Tensor d_o;
  std::optional<Tensor> d_lse;
  GradientRequest request;
  BackwardResult gradients;  // room for what is asked for

  BackwardTensors tensors() const;
  /// The gradients as an output file has them: "dq", "dk", "dv", "d_sinks", "d_captures.NAME", "d_params.NAME".
  std::vector<std::pair<std::string, Tensor>> named_gradients() const;
};

/// The plan of the forward, unless o and lse are given, and that of the backward: nothing runs before both are made.
struct BackwardPlans {
  std::optional<AttentionPlan> forward;
  AttentionPlan backward;
  explicit BackwardPlans(const BackwardJob& job);
};

/// Throws Error: io for files, invalid_argument for names and shapes. dtype: of --dtype; it converts dO and o too.
BackwardJob load_backward(const BackwardArguments& arguments, const std::string& dtype, AttentionJob attention);

}  // namespace heddle::cli
