// What a backend is to the engine: it says whether it takes a plan, prepares a kernel for it, and launches that.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
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
  void* stream = nullptr;           // CUstream of a GPU's run; null: the legacy default stream
};

/// What a kernel is prepared from. References live while prepare() runs; what the kernel needs later it keeps itself.
struct PrepareArguments {
  const problem::AttentionProblem& problem;
  const plan::Plan& plan;
  const AttentionTensors& tensors;  // strides; the memory may be absent
  const AttentionOptions& options;
  const Bindings& bindings;
  const BlockMask* block_mask;  // null: everything attends. Lives as long as the kernel, whose runs bring it again
};

/// A prepared attention. Immutable: several runs may go on at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Throws before anything is written. A GPU's only enqueues: no allocation, no synchronisation.
  virtual void launch(const RunArguments& arguments) const = 0;
  /// What explain() and explain_json() tell of the kernel: an object. "summary", one line, comes first; then any names,
  /// with strings, numbers, or lists of lines.
  virtual nlohmann::ordered_json facts() const = 0;
};

/// The rows of a block mask in a GPU's memory, and the kernels that find them there.
class DeviceMaskRows {
 public:
  virtual ~DeviceMaskRows() = default;
};

/// A block mask whose rows a GPU found; or, with no mask, why the host must find them: a sentence.
struct BuiltMask {
  std::shared_ptr<const BlockMask> mask;
  std::string refused;
};
/// The captures that the mask reads, of which there is one, are in the memory of one GPU. `rows` keeps what serves the
/// same mask again, for other blocks or after a change of params and captures; null at first. Waits for the GPU. Throws
/// as BlockMask::build, and Error(device), Error(out_of_memory), Error(compile).
BuiltMask build_mask_on_cuda(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                             DType reals, std::shared_ptr<DeviceMaskRows>& rows);

/// A result over some of the keys.
struct MergePart {
  ConstTensorView o, lse;
};
/// Everything was validated: shapes, dtypes, overlaps, one device.
struct MergeArguments {
  std::span<const MergePart> parts;
  TensorView o;
  std::optional<TensorView> lse;
  void* stream;  // CUstream of a GPU's
};
void merge_on_cpu(const MergeArguments& arguments);
/// Enqueues; the first of a process on each device compiles and loads a kernel. Throws Error(unsupported) for more
/// parts or rows than the kernel takes.
void merge_on_cuda(const MergeArguments& arguments);

struct Backend {
  BackendChoice choice;
  /// Empty when the backend takes the problem; else the reason, a sentence.
  std::string (*refuses)(const problem::AttentionProblem&);
  /// Throws cuda::jit::Rejected (an Error of code compile) when this plan's kernel is not acceptable but another may
  /// be.
  std::unique_ptr<Kernel> (*prepare)(const PrepareArguments&);
};

/// The backends of this build, each in its own folder.
const Backend& reference_backend();
const Backend& cpu_backend();
const Backend& cuda_backend();

}  // namespace heddle::backend
