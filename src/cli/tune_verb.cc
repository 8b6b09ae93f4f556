// heddle tune: measures the kernels that would do, and keeps which is the fastest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

#include "backward_job.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "output.h"
#include "progress_bar.h"
#include "run_verb.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

struct Measured {
  BackendChoice backend;
  Json explanation;
};

Measured measured_by(const auto& tensors, AttentionOptions options) {
  options.tuning = Tuning::again;
  const AttentionPlan plan(tensors, options);
  return {plan.backend(), Json::parse(plan.explain_json())};
}

Measured measure(const RunArguments& arguments) {
  AttentionJob job = load_job(arguments.attention);
  if (arguments.is_backward()) {
    const BackwardJob backward = load_backward(arguments.backward, arguments.attention.dtype, std::move(job));
    return measured_by(backward.tensors(), backward.attention.options);
  }
  const AttentionResult result = job.allocate();
  return measured_by(job.tensors(result), job.options);
}

std::string times_text(const Json& tuned) {
  std::string text;
  const double fastest = tuned["seconds"].get<double>();
  for (const Json& time : tuned["kernels"]) {
    const double seconds = time["seconds"].get<double>();
    text += fmt::format("{:>9}  {:5.2f}  {}{}{}\n", describe_seconds(seconds), seconds / fastest,
                        time["kernel"].get<std::string>(), time["kernel"] == tuned["kernel"] ? "; kept" : "",
                        time["kernel"] == tuned["planned"] ? "; the planner's first" : "");
  }
  return text;
}

int tune(const RunArguments& arguments) {
  Progress progress("measure");
  const Measured measured = measure(arguments);
  progress.finish();
  const Json& tuned = measured.explanation["tuned"];
  if (!tuned.is_null() && !tuned["trouble"].is_null()) {
    throw Error(ErrorCode::io, tuned["trouble"].get<std::string>());
  }
  if (arguments.json) {
    print_json(Json{{"verb", "tune"},
                    {"heddle", version()},
                    {"backend", name(measured.backend)},
                    {"problem", measured.explanation["problem"]["summary"]},
                    {"tuned", tuned}});
    return 0;
  }
  std::string text = measured.explanation["problem"]["summary"].get<std::string>() + "\n";
  text += tuned.is_null() ? "nothing was measured: one kernel computes it, or nothing attends\n" : times_text(tuned);
  print_text(text);
  return 0;
}

}  // namespace

void add_tune(CLI::App& app, Work& chosen) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand(
      "tune", "Measures the kernels for an attention here, and keeps which is the fastest for later plans.");
  add_attention_options(*verb, arguments->attention);
  add_backward_options(*verb, arguments->backward);
  verb->add_flag("--json", arguments->json, "prints JSON")->group("Result");
  verb->footer(
      "Times are kept in the cache folder (HEDDLE_CACHE_DIR), and serve plans of problems\n"
      "that need the same kernels and are about as large.\n"
      "Example:\n"
      "  heddle tune examples/data/minilm.safetensors --mask \"q_idx >= kv_idx\"");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return tune(*arguments); }; });
}

}  // namespace heddle::cli
