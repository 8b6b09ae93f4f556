#include <fmt/format.h>

#include <algorithm>

#include "heddle/error.h"
#include "plan/families/cpu_forward.h"
#include "plan/families/cpu_forward_costs.h"
#include "plan/families/forward_sm90.h"
#include "plan/plan.h"

namespace heddle::plan {
namespace {

template <class... Arguments>
[[noreturn]] void unsupported(fmt::format_string<Arguments...> sentence, Arguments&&... arguments) {
  throw Error(ErrorCode::unsupported, fmt::format(sentence, std::forward<Arguments>(arguments)...));
}

BackendChoice backend_of(const Device& device) {
  switch (device.kind) {
    case DeviceKind::cpu:
      return BackendChoice::cpu;
    case DeviceKind::cuda:
      return BackendChoice::cuda;
    case DeviceKind::rocm:
      break;
  }
  unsupported("q is on {}; tensors on the CPU or on a CUDA device are accepted", problem::name(device));
}

/// The backend that was asked for, which must be one of the tensors' device; automatic: the best one there.
BackendChoice resolve(BackendChoice wanted, const Device& device, const device::Machine& machine) {
  const BackendChoice own = backend_of(device);
  if (wanted == BackendChoice::automatic || wanted == own) return own;
  if (wanted == BackendChoice::reference && own == BackendChoice::cpu) return wanted;
  if (wanted != BackendChoice::cuda) {
    unsupported("q is on {}; backend {} takes tensors on the CPU", problem::name(device), name(wanted));
  }
  if (!machine.cuda.empty()) unsupported("q is on the CPU; backend cuda takes tensors on a CUDA device");
  unsupported("q is on the CPU; backend cuda takes tensors on a CUDA device, and this machine has none: {}",
              machine.cuda_missing);
}

Plan reference(int threads, const device::Caps& caps) {
  Plan plan;
  plan.backend = BackendChoice::reference;
  plan.family = "reference";
  plan.threads = threads > 0 ? threads : caps.cores;
  return plan;
}

Choice cpu(const problem::AttentionProblem& problem, int threads, const device::Caps& caps, const RowsOf& rows_of) {
  Choice choice = {cpu_forward(problem, threads, caps), nullptr};
  choice.block_mask = rows_of(choice.plan.tile);
  choice.plan.predicted = cpu_forward_prediction(problem, choice.plan, choice.block_mask.get(), caps);
  return choice;
}

const device::CudaCaps& caps_of(const Device& device, const device::Machine& machine) {
  if (machine.cuda.empty()) {
    unsupported("q is on {}, but this machine has no CUDA device: {}", problem::name(device), machine.cuda_missing);
  }
  const auto found = std::ranges::find(machine.cuda, device.index, &device::CudaCaps::index);
  if (found == machine.cuda.end()) {
    unsupported("q is on {}; this machine has {} CUDA devices", problem::name(device), machine.cuda.size());
  }
  return *found;
}

std::vector<Choice> cuda(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                         const AttentionOptions& options, const device::CudaCaps& caps, const RowsOf& rows_of) {
  const std::string reason = forward_sm90_refuses(problem, options, caps);
  if (!reason.empty()) unsupported("backend cuda has one family, forward_sm90: {}", reason);
  return forward_sm90(problem, tensors, options, caps, rows_of);
}

}  // namespace

std::vector<Choice> choose(const problem::AttentionProblem& problem, const AttentionTensors& tensors,
                           const AttentionOptions& options, const device::Machine& machine, const RowsOf& rows_of) {
  switch (resolve(options.backend, problem.device, machine)) {
    case BackendChoice::cuda:
      return cuda(problem, tensors, options, caps_of(problem.device, machine), rows_of);
    case BackendChoice::reference: {
      const Plan plan = reference(options.threads, machine.cpu);
      return {{plan, rows_of(plan.tile)}};
    }
    default:
      return {cpu(problem, options.threads, machine.cpu, rows_of)};
  }
}

}  // namespace heddle::plan
