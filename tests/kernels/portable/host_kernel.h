// Kernels of the portable forward family, compiled by the host's compiler and run there: planned for a GPU that is not
// there, launched over tensors of the host.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/portable/shared/forward_mma_config.h"
#include "engine/attention_case.h"
#include "families/forward_mma/shared/forward_mma_params.h"
#include "plan/mods/kv_start.h"
#include "plan/plan.h"

namespace heddle::test {

/// Memory of the host that a kernel reads, or writes; its parameters hold the addresses.
struct KernelMemory {
  std::string name;
  void* data = nullptr;
  std::size_t bytes = 0;
  bool written = false;     ///< by the kernel
  bool rewritable = false;  ///< several threads may write the same bytes
};

/// A kernel of the family, ready to be compiled and run.
struct KernelLaunch {
  shared::ForwardMmaConfig config;
  std::string mods_text;  ///< the configuration and the mods, as text
  shared::ForwardMmaParams params;
  int ctas = 0;
  std::vector<KernelMemory> memory;
};

/// How a case is run.
struct HostRun {
  shared::FragmentKind fragments = shared::FragmentKind::host;
  std::string_view gpu = "a100";                       // of known_gpus.h, that is planned for
  int candidate = 0;                                   // which of the plans; past their end: the last
  std::optional<int> splits{};                         // instead of the planned ones
  unsigned seed = 0;                                   // of the order of threads; of a case: the case's own
  std::function<void(const KernelLaunch&)> execute{};  // of a case; null: compiled and run on the host
};

/// Function run_kernel of a text, which the host's compiler compiles once a process. Throws runtime_error where it
/// refuses.
void* compile_on_host(const std::string& text);

/// The value of kv_start as a param or capture; `kept` holds what it points to.
Bindings kv_start_bindings(const plan::KvStart& start, const problem::AttentionProblem& problem, Tensor& kept);

/// A row of known_gpus.h.
const device::CudaCaps& known_gpu(std::string_view name);

/// Plans, compiles, runs. Throws Error(unsupported) where the family refuses the case. Returns the kernel's name.
std::string run_on_host(AttentionCase& attention_case, const HostRun& run);
/// Likewise, of tensors that are not a case's.
std::string run_on_host(const AttentionTensors& tensors, const AttentionOptions& options, const HostRun& run);

/// run_on_host(), and expects everything that each run owes.
void run_on_host_and_judge(AttentionCase& attention_case, const HostRun& run);

/// How many kernels were compiled so far.
int compiled_on_host();

/// How many random cases a run takes where a list has `count`: each compiles for a second or two, so a fifth; ten times
/// the count under HEDDLE_TEST_FULL.
int cases_on_host(int count);

}  // namespace heddle::test
