// heddle check: a backend's result against attention computed in float64.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "backward_job.h"
#include "heddle/check.h"
#include "heddle/devices.h"
#include "output.h"
#include "progress_bar.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

struct CheckArguments {
  AttentionArguments attention;
  BackwardArguments backward;
  std::string output;
  bool json = false, explain = false;
};

Json to_json(const TensorCheck& check) {
  return {{"passed", check.passed},
          {"max_error", check.max_error},
          {"max_allowed", check.max_allowed},
          {"mean_error", check.mean_error},
          {"mean_allowed", check.mean_allowed},
          {"plain_max_error", check.plain_max_error},
          {"plain_mean_error", check.plain_mean_error},
          {"worst_row", check.worst_row},
          {"mismatched_specials", check.mismatched_specials}};
}

int check_forward(const CheckArguments& arguments) {
  Progress progress("load");
  AttentionJob job = load_job(arguments.attention);
  job.options.progress = [&](double fraction) { progress.set(fraction); };

  progress.stage("run");
  const AttentionResult result = job.allocate();
  const AttentionTensors tensors = job.tensors(result);
  const AttentionPlan plan(tensors, job.options);
  run_once(plan, tensors);

  progress.stage("check");
  const auto lse = tensors.lse ? std::optional<ConstTensorView>(*tensors.lse) : std::nullopt;
  const CheckReport report = check_attention(job.q, job.k, job.v, job.options, result.o, lse);
  progress.finish();

  if (arguments.json) {
    Json json = {{"verb", "check"},         {"heddle", version()},    {"backend", name(plan.backend())},
                 {"passed", report.passed}, {"o", to_json(report.o)}, {"lse", nullptr}};
    json["explanation"] = Json::parse(plan.explain_json());
    if (report.lse) json["lse"] = to_json(*report.lse);
    print_json(json);
  } else {
    if (arguments.explain) print_text(plan.explain());
    print_text(report.text());
  }
  return report.passed ? 0 : 1;
}

int check_gradients(const CheckArguments& arguments) {
  Progress progress("load");
  BackwardJob job = load_backward(arguments.backward, arguments.attention.dtype, load_job(arguments.attention));
  job.attention.options.progress = [&](double fraction) { progress.set(fraction); };

  progress.stage("run");
  const BackwardPlans plans(job);
  if (plans.forward) run_once(*plans.forward, job.attention.tensors(job.forward));
  run_once(plans.backward, job.tensors());

  progress.stage("check");
  const GradientReport report = check_backward(job.tensors(), job.attention.options);
  progress.finish();

  if (arguments.json) {
    Json json = {{"verb", "check"},
                 {"pass", "backward"},
                 {"heddle", version()},
                 {"backend", name(plans.backward.backend())},
                 {"passed", report.passed},
                 {"gradients", Json::object()},
                 {"explanation", Json::parse(plans.backward.explain_json())}};
    for (const auto& [name, tensor] : report.tensors) json["gradients"][name] = to_json(tensor);
    print_json(json);
  } else {
    if (arguments.explain) print_text(plans.backward.explain());
    print_text(report.text());
  }
  return report.passed ? 0 : 1;
}

int check(const CheckArguments& arguments) {
  return arguments.backward.tensors.empty() ? check_forward(arguments) : check_gradients(arguments);
}

}  // namespace

void add_check(CLI::App& app, Work& chosen) {
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* verb =
      app.add_subcommand("check",
                         "Runs an attention, or its backward, and compares it with float64; exit code 1 when it "
                         "fails.");
  add_attention_options(*verb, arguments->attention);
  add_backward_options(*verb, arguments->backward);
  verb->add_option("-o,--output", arguments->output, "accepted, so that a run's arguments serve; nothing is written")
      ->option_text("FILE")
      ->group("Result");
  verb->add_flag("--explain", arguments->explain, "also prints what was decided, stage by stage")->group("Result");
  verb->add_flag("--json", arguments->json, "prints the figures as JSON")->group("Result");
  verb->footer(
      "The largest and the mean error may be twice those of the unfused computation in f32, and no row may err by "
      "more\n"
      "than its own magnitude allows (heddle/check.h).\n\n"
      "Example:\n"
      "  heddle check examples/data/minilm.safetensors --mask \"q_idx >= kv_idx and q_idx - kv_idx <= w\" --param "
      "w=64");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return check(*arguments); }; });
}

}  // namespace heddle::cli
