// What a backend is to the engine: it says whether it takes a plan, prepares a kernel for it, and launches that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::backend {

/// The memory and values of one run. Everything was validated.
struct RunArguments {
  AttentionTensors tensors;
  const AttentionOptions* options;  // sinks, descales, threads
  const Bindings* bindings;         // for the mods
  const BlockMask* block_mask;      // null: everything attends
  void* workspace;                  // plan.workspace_bytes
};

/// A prepared attention. Immutable: several runs may go on at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void launch(const RunArguments& arguments) const = 0;
  /// Lines for explain().
  virtual std::string describe() const = 0;
};

struct Backend {
  BackendChoice choice;
  /// Empty when the backend takes the problem; else the reason, a sentence.
  std::string (*refuses)(const problem::AttentionProblem&);
  std::unique_ptr<Kernel> (*prepare)(const problem::AttentionProblem&, const plan::Plan&, const Bindings&);
};

/// The backends of this build, each in its own folder.
const Backend& reference_backend();
const Backend& cpu_backend();

}  // namespace heddle::backend
