// An attention that the command line asked for, loaded and ready to plan.
#pragma once

#include "arguments.h"
#include "heddle/attention.h"
#include "heddle/tensor.h"
#include "names.h"

namespace heddle::cli {

/// Owns what the options' views point at.
struct AttentionJob {
  Names names;
  Tensor q, k, v;  // rank 4
  Tensor sinks;
  AttentionOptions options;

  /// Room for the results: o in q's dtype (bf16 for fp8), lse f32 (f64 for f64 inputs), empty where the normalizer has
  /// none.
  AttentionResult allocate() const;
  /// The same as views, for a plan.
  AttentionTensors tensors(const AttentionResult& result) const;
};

/// Throws Error: io for files, invalid_argument for names, mods and shapes.
AttentionJob load_job(const AttentionArguments& arguments);

}  // namespace heddle::cli
