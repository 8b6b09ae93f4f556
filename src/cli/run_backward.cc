// heddle run --backward: the forward, if o and lse are not given, and the gradients.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "backward_job.h"
#include "heddle/devices.h"
#include "output.h"
#include "progress_bar.h"
#include "run_verb.h"

namespace heddle::cli {
namespace {

struct Times {
  double load = 0, plan = 0, forward = 0, run = 0, save = 0;
};

// Results for files and reports, in CPU memory.
using Results = std::vector<std::pair<std::string, Tensor>>;
Results results_of(const BackwardJob& job) {
  Results results;
  for (const auto& [name, gradient] : job.named_gradients()) results.emplace_back(name, on_cpu(gradient));
  if (job.forward_given) return results;
  results.emplace_back("o", on_cpu(job.forward.o));
  if (job.attention.options.normalizer == Normalizer::softmax) results.emplace_back("lse", on_cpu(job.forward.lse));
  return results;
}

void save(const RunArguments& arguments, const BackwardJob& job, const Results& results) {
  TensorFile file;
  for (const auto& [name, tensor] : results) file.tensors[name] = tensor;
  add_metadata(file, job.attention.options);
  save_safetensors(path_of(arguments.output), file);
}

Json result_json(const RunArguments& arguments, const BackwardJob& job, const Results& results,
                 const AttentionPlan& plan, const Times& times) {
  Json json = {{"verb", "run"},
               {"pass", "backward"},
               {"heddle", version()},
               {"backend", name(plan.backend())},
               {"threads", job.attention.options.threads},
               {"q", to_json(job.attention.q)},
               {"k", to_json(job.attention.k)},
               {"v", to_json(job.attention.v)},
               {"d_o", to_json(job.d_o)},
               {"results", Json::object()},
               {"seconds",
                {{"load", times.load},
                 {"plan", times.plan},
                 {"forward", times.forward},
                 {"run", times.run},
                 {"save", times.save}}},
               {"block_mask", nullptr},
               {"explanation", Json::parse(plan.explain_json())},
               {"output", arguments.output}};
  for (const auto& [name, tensor] : results) json["results"][name] = to_json(tensor);
  if (job.forward_given) json["seconds"]["forward"] = nullptr;
  if (plan.block_mask() != nullptr) json["block_mask"] = to_json(*plan.block_mask());
  return json;
}

std::string result_text(const RunArguments& arguments, const BackwardJob& job, const Results& results,
                        const AttentionPlan& plan, const Times& times) {
  const AttentionJob& attention = job.attention;
  std::string text = fmt::format("q {}, k {}, v {}, dO {}\n", describe(attention.q), describe(attention.k),
                                 describe(attention.v), describe(job.d_o));
  if (plan.block_mask() != nullptr) text += fmt::format("mask: {}\n", describe(*plan.block_mask()));
  text += fmt::format("{}: planned in {}, ", name(plan.backend()), describe_seconds(times.plan));
  if (!job.forward_given) text += fmt::format("forward ran in {}, ", describe_seconds(times.forward));
  text += fmt::format("backward ran in {}\n{}:", describe_seconds(times.run), arguments.output);
  const char* separator = " ";
  for (const auto& [name, tensor] : results) {
    text += fmt::format("{}{} {}", std::exchange(separator, ", "), name, describe(tensor));
  }
  return text + "\n";
}

}  // namespace

int run_backward(const RunArguments& arguments) {
  Progress progress("load");
  Times times;
  Stopwatch watch;
  BackwardJob job = load_backward(arguments.backward, arguments.attention.dtype, load_job(arguments.attention));
  job.attention.options.progress = [&](double fraction) { progress.set(fraction); };
  times.load = watch.lap();

  progress.stage("plan");
  const BackwardPlans plans(job);
  times.plan = watch.lap();

  if (plans.forward) {
    progress.stage("forward");
    run_once(*plans.forward, job.attention.tensors(job.forward));
    times.forward = watch.lap();
  }
  progress.stage("backward");
  run_once(plans.backward, job.tensors());
  const Results results = results_of(job);
  times.run = watch.lap();

  progress.stage("save");
  save(arguments, job, results);
  times.save = watch.lap();
  progress.finish();

  if (arguments.json) {
    print_json(result_json(arguments, job, results, plans.backward, times));
  } else {
    if (arguments.explain) print_text(plans.backward.explain());
    print_text(result_text(arguments, job, results, plans.backward, times));
  }
  return 0;
}

}  // namespace heddle::cli
