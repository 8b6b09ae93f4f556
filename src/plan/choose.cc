#include "plan/families/cpu_forward.h"
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

}  // namespace

Plan choose(const problem::AttentionProblem& problem, BackendChoice wanted, int threads, const device::Caps& caps) {
  return wanted == BackendChoice::reference ? reference(threads, caps) : cpu_forward(problem, threads, caps);
}

}  // namespace heddle::plan
