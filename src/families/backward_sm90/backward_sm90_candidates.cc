#include "families/backward_sm90/backward_sm90_candidates.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "plan/access/kernel_types.h"
#include "plan/access/tma.h"
#include "plan/hopper/sm90_chip.h"
#include "plan/tiles/backward_schedule.h"

namespace heddle::plan {
namespace {

using shared::BackwardSm90Config;
using shared::OutputType;

constexpr int kNarrowPanels = 2;  // up to here a warpgroup holds dK and dV of its keys

bool divides(const ConstTensorView& view, std::int64_t elements) {
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] != 1 && view.strides[axis] % elements != 0) return false;
  }
  const auto bytes = static_cast<std::uintptr_t>(elements * size_of(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
}

/// A wide kernel has what its panels leave room for: two of each first, then a third of Q.
void set_stages(BackwardSm90Config& config) {
  config.q_stages = config.d_o_stages = 3;
  if (!config.wide) return;
  constexpr std::pair<int, int> kStages[] = {{3, 2}, {2, 2}, {2, 1}};
  for (const auto& [of_q, of_d_o] : kStages) {
    config.q_stages = of_q;
    config.d_o_stages = of_d_o;
    if (shared::backward_shared_bytes(config) <= kSm90SharedMemory) return;
  }
}

}  // namespace

BackwardSm90Config backward_sm90_config(const problem::AttentionProblem& problem, const BackwardMods& mods) {
  BackwardSm90Config config;
  config.qk_dim = static_cast<int>(problem.qk_dim);
  config.v_dim = static_cast<int>(problem.v_dim);
  const int panels = std::max(config.qk_panels(), config.v_panels());
  config.wide = panels > kNarrowPanels;
  config.columns = shared::kPanelColumns * (config.wide ? config.qk_panels() : panels);
  config.warpgroups = 2;
  config.f16 = problem.q_dtype == DType::f16;
  config.d_q = problem.wanted.q;
  config.masked = !mods.mask.empty();
  config.dropped = mods.drops.has_value();
  config.weighted = !mods.weight.empty() && !config.dropped;
  config.by_sequence = problem::sequences_differ(problem) || problem.packed;
  config.device_lengths = problem.device_lengths;
  const auto adds_alone = [&](const Sequence& sequence) { return sequence.kv_len <= config.keys(); };
  config.ordered = problem.deterministic && config.d_q && count_row_blocks(problem) > 0 &&
                   !std::ranges::all_of(problem.sequences, adds_alone);
  config.sinks = problem.wanted.sinks;
  config.scores = mods.form;
  // A score_mod and its derivative leave no registers for them beside 128 columns, draws none beside 256.
  const bool mapped = config.scores == shared::ScoreForm::mapped;
  config.early_numbers =
      config.wide ? !mapped && !config.dropped && !config.weighted : config.columns == shared::kPanelColumns || !mapped;
  config.normalizer = normalizer_of(problem);
  config.lse_rest = problem.with_lse_rest;
  config.o_type = output_type_of(problem.o_dtype, problem.q_dtype);
  set_stages(config);
  return config;
}

BackwardSm90Config with_gradients(BackwardSm90Config config, const BackwardTensors& tensors) {
  constexpr std::int64_t kWide = 8;
  config.wide_rows = config.o_type == OutputType::same && config.v_dim % kWide == 0 && divides(tensors.o, kWide) &&
                     divides(tensors.d_o, kWide);
  const DType own = tensors.q.dtype;
  const auto set = [&](const std::optional<TensorView>& view, OutputType& type) {
    if (!view) return;
    type = output_type_of(view->dtype, own);
    config.odd_gradients = config.odd_gradients || !divides(*view, 2);
  };
  const auto wide = [&](const std::optional<TensorView>& view) {
    return !view || (view->dtype == own && view->shape[view->rank() - 1] % kWide == 0 && divides(*view, kWide));
  };
  config.wide_gradients = wide(tensors.dk) && wide(tensors.dv);
  config.wide_d_q = tensors.dq && wide(tensors.dq);
  set(tensors.dq, config.d_q_type);
  set(tensors.dk, config.d_k_type);
  set(tensors.dv, config.d_v_type);
  if (tensors.d_sinks) config.d_sinks_type = output_type_of(tensors.d_sinks->dtype, own);
  return config;
}

std::vector<Setting> backward_sm90_settings(const BackwardSm90Config& config) {
  std::vector<Setting> settings = settings_of(config);
  settings.push_back({"shared_memory_bytes", shared::backward_shared_bytes(config)});
  return settings;
}

}  // namespace heddle::plan
