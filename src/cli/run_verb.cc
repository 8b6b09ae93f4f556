// heddle run.
#include "run_verb.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "backward_job.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/files.h"
#include "output.h"
#include "progress_bar.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

struct Times {
  double load = 0, plan = 0, run = 0, save = 0;
};

/// Refuses an output that is one of the files which the run reads.
void check_output(const RunArguments& arguments) {
  if (std::filesystem::path(arguments.output).extension() == ".npy") {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("-o: {} ends in .npy; the result is a .safetensors file", arguments.output));
  }
  const AttentionArguments& given = arguments.attention;
  std::vector<InputFile> inputs = {{"", given.input}, {"--q", given.q}, {"--k", given.k}, {"--v", given.v}};
  add_named_files("--capture", given.captures, inputs);
  add_named_files("--backward", arguments.backward.tensors, inputs);
  check_output("-o", arguments.output, inputs);
}

void save(const RunArguments& arguments, const AttentionJob& job, const AttentionResult& result) {
  TensorFile file;
  file.tensors["o"] = result.o;
  if (job.options.normalizer == Normalizer::softmax) file.tensors["lse"] = result.lse;
  add_metadata(file, job.options);
  save_safetensors(path_of(arguments.output), file);
}

Json result_json(const RunArguments& arguments, const AttentionJob& job, const AttentionResult& result,
                 const AttentionPlan& plan, const Times& times) {
  Json json = {{"verb", "run"},
               {"heddle", version()},
               {"backend", name(plan.backend())},
               {"threads", job.options.threads},
               {"q", to_json(job.q)},
               {"k", to_json(job.k)},
               {"v", to_json(job.v)},
               {"o", to_json(result.o)},
               {"lse", nullptr},
               {"seconds", {{"load", times.load}, {"plan", times.plan}, {"run", times.run}, {"save", times.save}}},
               {"block_mask", nullptr},
               {"explanation", Json::parse(plan.explain_json())},
               {"output", arguments.output}};
  if (job.options.normalizer == Normalizer::softmax) json["lse"] = to_json(result.lse);
  if (plan.block_mask() != nullptr) json["block_mask"] = to_json(*plan.block_mask());
  return json;
}

std::string result_text(const RunArguments& arguments, const AttentionJob& job, const AttentionResult& result,
                        const AttentionPlan& plan, const Times& times) {
  std::string text = fmt::format("q {}, k {}, v {}\n", describe(job.q), describe(job.k), describe(job.v));
  if (plan.block_mask() != nullptr) text += fmt::format("mask: {}\n", describe(*plan.block_mask()));
  text += fmt::format("{}: planned in {}, ran in {}\n", name(plan.backend()), describe_seconds(times.plan),
                      describe_seconds(times.run));
  text += fmt::format("{}: o {}", arguments.output, describe(result.o));
  if (job.options.normalizer == Normalizer::softmax) text += fmt::format(", lse {}", describe(result.lse));
  return text + "\n";
}

int run_forward(const RunArguments& arguments) {
  Progress progress("load");
  Times times;
  Stopwatch watch;
  AttentionJob job = load_job(arguments.attention);
  job.options.progress = [&](double fraction) { progress.set(fraction); };
  times.load = watch.lap();

  progress.stage("plan");
  const AttentionResult result = job.allocate();
  const AttentionPlan plan(job.tensors(result), job.options);
  times.plan = watch.lap();

  progress.stage("run");
  run_once(plan, job.tensors(result));
  const AttentionResult done = on_cpu(result);
  times.run = watch.lap();

  progress.stage("save");
  save(arguments, job, done);
  times.save = watch.lap();
  progress.finish();

  if (arguments.json) {
    print_json(result_json(arguments, job, done, plan, times));
  } else {
    if (arguments.explain) print_text(plan.explain());
    print_text(result_text(arguments, job, done, plan, times));
  }
  return 0;
}

int run(const RunArguments& arguments) {
  check_output(arguments);
  report_beside(arguments.output);
  return arguments.is_backward() ? run_backward(arguments) : run_forward(arguments);
}

}  // namespace

void add_metadata(TensorFile& file, const AttentionOptions& options) {
  file.metadata["heddle"] = version();
  const auto note = [&](const std::string& key, const Expr& mod) {
    if (!mod.empty()) file.metadata[key] = print(mod);
  };
  note("score", options.score_mod);
  note("mask", options.mask_mod);
  note("weight", options.weight_mod);
}

void add_run(CLI::App& app, Work& chosen) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* verb = app.add_subcommand("run", "Computes an attention, or its gradients, and writes them.");
  add_attention_options(*verb, arguments->attention);
  add_backward_options(*verb, arguments->backward);
  add_text(*verb, "-o,--output", arguments->output, "FILE.safetensors",
           "gets o, and lse where the normalizer is softmax; with --backward\n"
           "dq, dk, dv, d_sinks, d_captures.NAME and d_params.NAME, and o and\n"
           "lse if they were computed; written only when all went well. - is\n"
           "the standard output: then the report goes to stderr")
      ->required()
      ->group("Result");
  verb->add_flag("--explain", arguments->explain, "also prints what was decided, stage by stage")->group("Result");
  verb->add_flag("--json", arguments->json, "prints shapes, times, backend and what was decided as\nJSON")
      ->group("Result");
  verb->footer(
      "Example: causal attention with ALiBi, whose slopes the file holds\n"
      "  heddle run examples/data/minilm.safetensors -o out.safetensors \\\n"
      "      --mask \"q_idx >= kv_idx\" --score \"score + slopes[h] * (kv_idx - q_idx)\"");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace heddle::cli
