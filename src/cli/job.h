// An attention that the command line asked for, loaded and ready to plan.
#pragma once

#include <vector>

#include "arguments.h"
#include "heddle/attention.h"
#include "heddle/backward.h"
#include "heddle/tensor.h"
#include "named_values.h"

namespace heddle::cli {

/// Owns what the options' views point at. With --backend cuda or amd, q, k, v and what runs read are on the GPU.
struct AttentionJob {
  Names names;
  Tensor q, k, v;  // rank 4
  Tensor sinks;
  std::vector<Tensor> on_gpu;  // captures and small tensors
  AttentionOptions options;

  /// Room for the results: o in q's dtype (bf16 for fp8), lse f32 (f64 for f64 inputs), empty where the normalizer has
  /// none; on q's device. `to_plan_only`: on the CPU addresses without memory (reserved.h).
  AttentionResult allocate(bool to_plan_only = false) const;
  /// Views of the tensors, for a plan.
  AttentionTensors tensors(const AttentionResult& result) const;
};

/// Runs the plan once, with a workspace of its own.
void run_once(const AttentionPlan& plan, const AttentionTensors& tensors);
void run_once(const AttentionPlan& plan, const BackwardTensors& tensors);
/// Copies in CPU memory, made once the run is done.
AttentionResult on_cpu(const AttentionResult& result);
Tensor on_cpu(const Tensor& tensor);

/// A tensor whose axes are `axes` ("[B, H, S, D]"), or these without the first one for one batch entry.
Tensor with_batch(const std::string& name, const Tensor& tensor, const std::string& axes);

/// Throws Error: io for files, invalid_argument for names, mods and shapes.
/// `on_its_device` false: all tensors stay in CPU memory, to be planned for only.
AttentionJob load_job(const AttentionArguments& arguments, bool on_its_device = true);

}  // namespace heddle::cli
