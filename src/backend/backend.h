// A kernel as the engine sees it: the arguments that it is prepared from, and those of its runs.
#pragma once

#include <cstdint>
#include <memory>

#include "base/json_tree.h"
#include "base/rejected.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::backend {

using base::Rejected;

/// The memory and values of one run. Everything was validated.
struct RunArguments {
  AttentionTensors tensors;
  const AttentionOptions* options;            // sinks, descales, threads
  const Bindings* bindings;                   // for the mods
  const BlockMask* block_mask;                // null: everything attends
  void* workspace;                            // plan.workspace_bytes
  void* stream = nullptr;                     // of a GPU's run; null: the device's default stream
  const BackwardTensors* backward = nullptr;  // of a backward; `tensors` has what it shares with its forward
};

/// Arguments of prepare(). The references are valid while it runs: the kernel copies the parts that it needs later.
struct PrepareArguments {
  const problem::AttentionProblem& problem;
  const plan::Plan& plan;
  const AttentionTensors& tensors;  // strides; the memory may be absent
  const AttentionOptions& options;
  const Bindings& bindings;
  const BlockMask* block_mask;  // null: everything attends. Lives as long as the kernel, whose runs bring it again
  const BackwardTensors* backward = nullptr;  // of a backward; `tensors` has what it shares with its forward
};

/// A prepared attention. Immutable: several runs may go on at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Throws before anything is written. A GPU's only enqueues: no allocation, no synchronisation.
  virtual void launch(const RunArguments& arguments) const = 0;
  /// Facts about the kernel for explain() and explain_json(): an object. "summary", one line, comes first; then any
  /// names, with strings, numbers, or lists of lines.
  virtual base::JsonTree facts() const = 0;
  /// Bytes of the device's memory that the kernel keeps from run to run.
  virtual std::int64_t held_bytes() const { return 0; }
};

}  // namespace heddle::backend
