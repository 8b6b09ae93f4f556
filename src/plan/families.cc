#include "plan/families.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "plan/families/backward_mma.h"
#include "plan/families/backward_mma_config.h"
#include "plan/families/backward_sm90.h"
#include "plan/families/backward_sm90_config.h"
#include "plan/families/cpu_backward.h"
#include "plan/families/cpu_forward.h"
#include "plan/families/cpu_forward_costs.h"
#include "plan/families/forward_mma.h"
#include "plan/families/forward_sm90.h"
#include "plan/families/forward_sm90_config.h"

namespace heddle::plan {
namespace {

std::string takes_all(const Request&) { return {}; }

std::vector<Choice> reference(const Request& request, const RowsOf& rows_of) {
  Plan plan;
  plan.threads = request.options.threads > 0 ? request.options.threads : request.machine.cpu.cores;
  plan.forms = {.score = request.problem.score_mod.empty() ? "" : "interpreted in f64, unsimplified",
                .mask = request.problem.mask_mod.empty() ? "" : "interpreted, unsimplified",
                .weight = request.problem.weight_mod.empty() ? "" : "interpreted in f64, unsimplified"};
  return {{plan, rows_of(plan.tile)}};
}

Choice cpu_choice(const Request& request, const RowsOf& rows_of, Plan plan) {
  Choice choice = {std::move(plan), nullptr};
  const problem::AttentionProblem& problem = request.problem;
  ModForms& forms = choice.plan.forms;
  if (!problem.score_mod.empty()) forms.score = "computed for each pair of a tile with SIMD: no other form on the CPU";
  if (!problem.mask_mod.empty()) forms.mask = "computed for each pair of a partial block with SIMD";
  if (!problem.weight_mod.empty()) forms.weight = "computed for each pair of a tile with SIMD";
  choice.block_mask = rows_of(choice.plan.tile);
  choice.plan.predicted =
      cpu_forward_prediction(request.problem, choice.plan, choice.block_mask.get(), request.machine.cpu);
  return choice;
}

std::vector<Choice> cpu(const Request& request, const RowsOf& rows_of) {
  return {cpu_choice(request, rows_of, cpu_forward(request.problem, request.options.threads, request.machine.cpu))};
}

std::vector<Choice> cpu_variants(const Request& request, const RowsOf& rows_of) {
  std::vector<Choice> choices;
  for (Plan& plan : cpu_forward_variants(request.problem, request.options.threads, request.machine.cpu)) {
    choices.push_back(cpu_choice(request, rows_of, std::move(plan)));
  }
  return choices;
}

Choice cpu_backward_choice(const Request& request, const RowsOf& rows_of, Plan plan) {
  Choice choice = {std::move(plan), nullptr};
  const problem::AttentionProblem& problem = request.problem;
  ModForms& forms = choice.plan.forms;
  if (!problem.score_mod.empty()) forms.score = "computed, with its derivative, for each pair of a tile with SIMD";
  if (!problem.mask_mod.empty()) forms.mask = "computed for each pair of a partial block with SIMD";
  if (!problem.weight_mod.empty()) forms.weight = "computed for each pair of a tile with SIMD";
  choice.block_mask = rows_of(choice.plan.tile);
  choice.plan.predicted = cpu_backward_prediction(problem, choice.plan, choice.block_mask.get(), request.machine.cpu);
  return choice;
}

std::vector<Choice> cpu_backward_choices(const Request& request, const RowsOf& rows_of) {
  return {cpu_backward_choice(request, rows_of, cpu_backward(request))};
}

std::vector<Choice> cpu_backward_variants_of(const Request& request, const RowsOf& rows_of) {
  std::vector<Choice> choices;
  for (Plan& plan : cpu_backward_variants(request)) {
    choices.push_back(cpu_backward_choice(request, rows_of, std::move(plan)));
  }
  return choices;
}

/// choose() saw to it that the device is there.
const device::CudaCaps& cuda_caps(const Request& request) {
  return *std::ranges::find(request.machine.cuda, request.problem.device.index, &device::CudaCaps::index);
}

const device::AmdCaps& amd_caps(const Request& request) {
  return *std::ranges::find(request.machine.amd, request.problem.device.index, &device::AmdCaps::index);
}

constexpr Family kFamilies[] = {
    {"cpu_forward", BackendChoice::cpu, problem::Pass::forward, takes_all, cpu, cpu_variants, nullptr, nullptr},
    {"cpu_backward", BackendChoice::cpu, problem::Pass::backward, takes_all, cpu_backward_choices,
     cpu_backward_variants_of, nullptr, nullptr},
    {"reference", BackendChoice::reference, problem::Pass::forward, takes_all, reference, nullptr, nullptr, nullptr},
    {"reference_backward", BackendChoice::reference, problem::Pass::backward, takes_all, reference, nullptr, nullptr,
     nullptr},
    {"forward_sm90", BackendChoice::cuda, problem::Pass::forward,
     [](const Request& request) { return forward_sm90_refuses(request.problem, request.options, cuda_caps(request)); },
     [](const Request& request, const RowsOf& rows_of) {
       return forward_sm90(request.problem, request.tensors, request.options, cuda_caps(request), rows_of);
     },
     nullptr,
     [](const Plan& plan, const Request& request, const BlockMask* block_mask) {
       return forward_sm90_schedule(request.problem, *plan.forward_sm90, block_mask, cuda_caps(request), plan.order);
     },
     [](const Plan& plan) { return forward_sm90_settings(*plan.forward_sm90); }},
    {"forward_mma", BackendChoice::cuda, problem::Pass::forward,
     [](const Request& request) { return forward_mma_refuses(request.problem, request.options, cuda_caps(request)); },
     [](const Request& request, const RowsOf& rows_of) {
       return forward_mma(request.problem, request.tensors, request.options, cuda_caps(request), rows_of);
     },
     [](const Request& request, const RowsOf& rows_of) {
       return forward_mma_variants(request.problem, request.tensors, request.options, cuda_caps(request), rows_of);
     },
     [](const Plan& plan, const Request& request, const BlockMask* block_mask) {
       return forward_mma_schedule(request.problem, *plan.forward_mma, block_mask, cuda_caps(request), plan.order);
     },
     [](const Plan& plan) { return forward_mma_settings(*plan.forward_mma); },
     [](const Request& request) { return portable_untried(cuda_caps(request)); }},
    {"forward_mma", BackendChoice::amd, problem::Pass::forward,
     [](const Request& request) { return forward_mma_refuses(request.problem, request.options, amd_caps(request)); },
     [](const Request& request, const RowsOf& rows_of) {
       return forward_mma(request.problem, request.tensors, request.options, amd_caps(request), rows_of);
     },
     [](const Request& request, const RowsOf& rows_of) {
       return forward_mma_variants(request.problem, request.tensors, request.options, amd_caps(request), rows_of);
     },
     [](const Plan& plan, const Request& request, const BlockMask* block_mask) {
       return forward_mma_schedule(request.problem, *plan.forward_mma, block_mask, amd_caps(request), plan.order);
     },
     [](const Plan& plan) { return forward_mma_settings(*plan.forward_mma); },
     [](const Request& request) { return portable_untried(amd_caps(request)); }},
    {"backward_sm90", BackendChoice::cuda, problem::Pass::backward,
     [](const Request& request) { return backward_sm90_refuses(request, cuda_caps(request)); },
     [](const Request& request, const RowsOf& rows_of) { return backward_sm90(request, cuda_caps(request), rows_of); },
     nullptr, nullptr, [](const Plan& plan) { return backward_sm90_settings(*plan.backward_sm90); }},
    {"backward_mma", BackendChoice::cuda, problem::Pass::backward,
     [](const Request& request) { return backward_mma_refuses(request, cuda_caps(request)); },
     [](const Request& request, const RowsOf& rows_of) { return backward_mma(request, cuda_caps(request), rows_of); },
     nullptr, nullptr, [](const Plan& plan) { return backward_mma_settings(*plan.backward_mma); },
     [](const Request& request) { return portable_untried(cuda_caps(request)); }},
    {"backward_mma", BackendChoice::amd, problem::Pass::backward,
     [](const Request& request) { return backward_mma_refuses(request, amd_caps(request)); },
     [](const Request& request, const RowsOf& rows_of) { return backward_mma(request, amd_caps(request), rows_of); },
     nullptr, nullptr, [](const Plan& plan) { return backward_mma_settings(*plan.backward_mma); },
     [](const Request& request) { return portable_untried(amd_caps(request)); }},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* family_of(std::string_view name, BackendChoice backend) {
  const auto* at = std::ranges::find_if(
      kFamilies, [&](const Family& family) { return family.name == name && family.backend == backend; });
  return at == std::end(kFamilies) ? nullptr : at;
}

}  // namespace heddle::plan
