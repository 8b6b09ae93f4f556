#include "families/cpu/cpu_choices.h"

#include <utility>

#include "families/cpu/cpu_backward_plans.h"
#include "families/cpu/cpu_forward_costs.h"
#include "families/cpu/cpu_forward_plans.h"

namespace heddle::plan {
namespace {

Choice choice_of(const Request& request, const RowsOf& rows_of, Plan plan) {
  const problem::AttentionProblem& problem = request.problem;
  const bool backward = problem.pass == problem::Pass::backward;
  ModForms& forms = plan.forms;
  if (!problem.score_mod.empty()) {
    forms.score = backward ? "computed, with its derivative, for each pair of a tile with SIMD"
                           : "computed for each pair of a tile with SIMD: no other form on the CPU";
  }
  if (!problem.mask_mod.empty()) forms.mask = "computed for each pair of a partial block with SIMD";
  if (!problem.weight_mod.empty()) forms.weight = "computed for each pair of a tile with SIMD";
  Choice choice = {std::move(plan), nullptr};
  choice.block_mask = rows_of(choice.plan.tile);
  const auto predict = backward ? cpu_backward_prediction : cpu_forward_prediction;
  choice.plan.predicted = predict(problem, choice.plan, choice.block_mask.get(), request.machine.cpu);
  return choice;
}

std::vector<Choice> choices_of(const Request& request, const RowsOf& rows_of, std::vector<Plan> plans) {
  std::vector<Choice> choices;
  for (Plan& plan : plans) choices.push_back(choice_of(request, rows_of, std::move(plan)));
  return choices;
}

}  // namespace

std::vector<Choice> cpu_forward_choices(const Request& request, const RowsOf& rows_of) {
  return choices_of(request, rows_of, {cpu_forward(request.problem, request.options.threads, request.machine.cpu)});
}

std::vector<Choice> cpu_forward_variant_choices(const Request& request, const RowsOf& rows_of) {
  return choices_of(request, rows_of,
                    cpu_forward_variants(request.problem, request.options.threads, request.machine.cpu));
}

std::vector<Choice> cpu_backward_choices(const Request& request, const RowsOf& rows_of) {
  return choices_of(request, rows_of, {cpu_backward(request)});
}

std::vector<Choice> cpu_backward_variant_choices(const Request& request, const RowsOf& rows_of) {
  return choices_of(request, rows_of, cpu_backward_variants(request));
}

}  // namespace heddle::plan
