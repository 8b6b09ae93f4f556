#include "plan/plan.h"

#include <fmt/format.h>

#include <string_view>

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
namespace {

/// What a partial step finds before its scores have come.
std::string_view describe_mask(const shared::ForwardSm90Config& config) {
  switch (config.mask) {
    case shared::MaskForm::direct:
      return "";
    case shared::MaskForm::distance:
      return config.mask_range ? ", mask by a range of distances" : ", mask by bits of distances";
    case shared::MaskForm::values:
      return ", mask by bits of keys";
    case shared::MaskForm::stored:
      return ", mask by stored bits";
    case shared::MaskForm::both:
      return config.mask_range ? ", mask by a range of distances and bits of keys"
                               : ", mask by bits of distances and of keys";
  }
  return "";
}

/// What the tile's queries are where heads are packed.
std::string describe_heads(const Plan& plan) {
  if (plan.packed_heads == 0) return {};
  return fmt::format(", packs {} heads a tile", plan.packed_heads);
}

std::string describe_sm90(const Plan& plan) {
  const shared::ForwardSm90Config& config = *plan.sm90;
  return fmt::format(
      "{} on cuda:{}, tile {} queries x {} keys{}, {} warpgroups, {} stages, {} buffers of queries{}, {} CTAs, {} "
      "bytes "
      "of "
      "shared memory, workspace {} bytes",
      plan.family, plan.device, plan.tile.q, plan.tile.kv, describe_heads(plan), config.warpgroups, config.stages,
      config.q_buffers, describe_mask(config), plan.grid, shared::forward_sm90_memory(config).bytes,
      plan.workspace_bytes);
}

std::string describe_cpu(const Plan& plan) {
  return fmt::format("{} on {}, tile {} queries x {} keys, {} threads, workspace {} bytes", plan.family,
                     name(plan.backend), plan.tile.q, plan.tile.kv, plan.threads, plan.workspace_bytes);
}

}  // namespace

std::string to_string(const Plan& plan) {
  std::string text = plan.sm90 ? describe_sm90(plan) : describe_cpu(plan);
  if (plan.predicted) {
    const Prediction& predicted = *plan.predicted;
    text += fmt::format("\n  predicted: {:.4g} ms, {:.4g} GFLOP, {:.4g} MB", predicted.seconds * 1e3,
                        predicted.flops * 1e-9, predicted.bytes * 1e-6);
  }
  if (!plan.mask.empty()) text += fmt::format("\n  {}", plan.mask);
  for (const std::string& sentence : plan.access) text += fmt::format("\n  {}", sentence);
  for (const std::string& reason : plan.rejected) text += fmt::format("\n  rejected: {}", reason);
  return text;
}

}  // namespace plan
}  // namespace heddle
