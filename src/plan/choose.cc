#include <fmt/format.h>

#include "heddle/error.h"
#include "plan/families/cpu_forward.h"
#include "plan/families/forward_sm90.h"
#include "plan/plan.h"

namespace heddle::plan {
namespace {

Plan reference(int threads, const device::Caps& caps) {
  Plan plan;
  plan.backend = BackendChoice::reference;
  plan.family = "reference";
  plan.threads = threads > 0 ? threads : caps.cores;
  return plan;
}

BackendChoice resolve(BackendChoice wanted, const Device& device) {
  if (wanted != BackendChoice::automatic) return wanted;
  return device.kind == DeviceKind::cuda ? BackendChoice::cuda : BackendChoice::cpu;
}

}  // namespace

std::vector<Choice> choose(const problem::AttentionProblem& problem, const AttentionTensors& /*tensors*/,
                           const AttentionOptions& options, const device::Machine& machine, const RowsOf& rows_of) {
  Plan plan;
  switch (resolve(options.backend, Device{})) {
    case BackendChoice::reference:
      plan = reference(options.threads, machine.cpu);
      break;
    default:
      plan = cpu_forward(problem, options.threads, machine.cpu);
  }
  return {{plan, rows_of(plan.tile)}};
}

}  // namespace heddle::plan
