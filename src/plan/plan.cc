#include "plan/plan.h"

#include <fmt/format.h>

namespace heddle {

std::string_view name(BackendChoice backend) {
  switch (backend) {
    case BackendChoice::automatic:
      return "automatic";
    case BackendChoice::cpu:
      return "cpu";
    case BackendChoice::reference:
      return "reference";
    case BackendChoice::cuda:
      break;
  }
  return "cuda";
}

namespace plan {

std::string to_string(const Plan& plan) {
  std::string text = fmt::format("{} on {}, tile {} queries x {} keys, {} threads, workspace {} bytes", plan.family,
                                 name(plan.backend), plan.tile.q, plan.tile.kv, plan.threads, plan.workspace_bytes);
  for (const std::string& reason : plan.rejected) text += fmt::format("\n  rejected: {}", reason);
  return text;
}

}  // namespace plan
}  // namespace heddle
