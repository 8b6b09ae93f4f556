// Kernels of the portable forward family, compiled by the host's compiler and run there: planned for a GPU that is not
// there, launched over tensors of the host.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/attention_case.h"
#include "plan/plan.h"

namespace heddle::test {

/// How a case is run.
struct HostRun {
  shared::FragmentKind fragments = shared::FragmentKind::host;
  std::string_view gpu = "a100";  // of known_gpus.h, that is planned for
  int candidate = 0;              // which of the plans; past their end: the last
  std::optional<int> splits{};    // instead of the planned ones
};

/// Plans, compiles, runs. Throws Error(unsupported) where the family refuses the case. Returns the kernel's name.
std::string run_on_host(AttentionCase& attention_case, const HostRun& run);

/// The same, and expects what every run owes.
void run_on_host_and_judge(AttentionCase& attention_case, const HostRun& run);

/// How many kernels were compiled so far.
int compiled_on_host();

}  // namespace heddle::test
