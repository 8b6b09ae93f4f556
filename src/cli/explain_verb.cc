// heddle explain: plans, and says what was decided and why, as text, as JSON, or as a page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backward_job.h"
#include "explain_page.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/files.h"
#include "output.h"
#include "progress_bar.h"
#include "reserved.h"
#include "run_verb.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

struct ExplainArguments {
  AttentionArguments attention;
  BackwardArguments backward;
  std::string gpu;   // one that need not be here
  std::string html;  // the page's file
  bool measure = false, json = false;

  bool is_backward() const { return !backward.tensors.empty(); }
  bool has_shapes() const {
    return !(attention.q_shape.empty() && attention.k_shape.empty() && attention.v_shape.empty());
  }
};

struct Timing {
  double seconds = 0;
  int runs = 0;
};

struct Explained {
  Json explanation;
  std::string text;
  Json parts = Json::object();  // bytes of each tensor, and of the workspace
  std::shared_ptr<const BlockMask> block_mask;
  std::optional<Timing> timing;
};

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

/// The median of 3 to 25 runs, for about a second after one that is not counted.
Timing time_runs(const AttentionPlan& plan, const AttentionTensors& tensors) {
  run_once(plan, tensors);
  std::vector<double> times;
  Stopwatch all, each;
  double spent = 0;
  while (times.size() < 3 || (times.size() < 25 && spent < 1)) {
    each.lap();
    run_once(plan, tensors);
    times.push_back(each.lap());
    spent += all.lap();
  }
  std::ranges::sort(times);
  return {times[times.size() / 2], static_cast<int>(times.size())};
}

void add_parts(Json& parts, const auto& tensors) {
  const auto add = [&](const char* name, const auto& tensor) { parts[name] = tensor.count() * size_of(tensor.dtype); };
  add("q", tensors.q);
  add("k", tensors.k);
  add("v", tensors.v);
  add("o", tensors.o);
  if (tensors.lse) add("lse", *tensors.lse);
  if constexpr (requires { tensors.dq; }) {
    add("dO", tensors.d_o);
    if (tensors.dq) add("dq", *tensors.dq);
    if (tensors.dk) add("dk", *tensors.dk);
    if (tensors.dv) add("dv", *tensors.dv);
  }
}

Explained explained_by(const ExplainArguments& arguments, const auto& tensors, const AttentionOptions& options) {
  Explained result;
  add_parts(result.parts, tensors);
  if (!arguments.gpu.empty()) {
    const Explanation there = explain_on(arguments.gpu, tensors, options);
    result.explanation = Json::parse(there.json);
    result.text = there.text;
    result.block_mask = there.block_mask;
  } else {
    const AttentionPlan plan(tensors, options);
    result.explanation = Json::parse(plan.explain_json());
    result.text = plan.explain();
    if (plan.block_mask() != nullptr) result.block_mask = std::make_shared<const BlockMask>(*plan.block_mask());
    if constexpr (!requires { tensors.dq; }) {
      if (arguments.measure) result.timing = time_runs(plan, tensors);
    }
  }
  result.parts["workspace"] = result.explanation["plan"]["workspace_bytes"];
  return result;
}

Explained plan_of(const ExplainArguments& arguments) {
  const bool here = arguments.gpu.empty();
  AttentionJob job = load_job(arguments.attention, here);
  if (arguments.is_backward()) {
    const BackwardJob backward = load_backward(arguments.backward, arguments.attention.dtype, std::move(job));
    return explained_by(arguments, backward.tensors(), backward.attention.options);
  }
  const AttentionResult result = job.allocate(!arguments.measure);
  return explained_by(arguments, job.tensors(result), job.options);
}

std::string bytes_text(std::int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return fmt::format("{:.3g} {}", value, units[unit]);
}

/// Bytes that a run needs, and on the CPU a sentence if this machine has less.
Json memory_json(const Explained& explained) {
  std::int64_t total = 0;
  for (const Json& bytes : explained.parts) total += bytes.get<std::int64_t>();
  const std::string backend = explained.explanation["plan"]["backend"];
  const bool on_cpu = backend == "cpu" || backend == "reference";
  Json json = {{"parts", explained.parts}, {"total", total}, {"machine", nullptr}, {"sentence", nullptr}};
  if (!on_cpu) return json;
  json["machine"] = machine_memory();
  if (total > machine_memory()) {
    json["sentence"] = fmt::format(
        "A run needs {}; this machine has {}. Give it fewer sequences or heads at a time, or a "
        "machine with more memory.",
        bytes_text(total), bytes_text(machine_memory()));
  }
  return json;
}

std::string memory_text(const Json& memory) {
  std::string parts;
  for (const auto& [name, bytes] : memory["parts"].items()) {
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, bytes_text(bytes.get<std::int64_t>()));
  }
  std::string text = fmt::format("{:<11}{}: {}\n", "memory", bytes_text(memory["total"].get<std::int64_t>()), parts);
  if (!memory["sentence"].is_null()) text += fmt::format("{:<11}{}\n", "", memory["sentence"].get<std::string>());
  return text;
}

void check_arguments(const ExplainArguments& arguments) {
  if (arguments.has_shapes() && arguments.is_backward()) {
    refuse("--backward needs tensors that are there; --q-shape, --k-shape and --v-shape are of forwards alone");
  }
  const std::string& backend = arguments.attention.backend;
  if (arguments.has_shapes() && arguments.gpu.empty() && (backend == "cuda" || backend == "amd")) {
    refuse(fmt::format("--q-shape, --k-shape and --v-shape with --backend {}: name the GPU by --gpu instead", backend));
  }
  if (!arguments.gpu.empty() && backend != "automatic") {
    refuse(fmt::format("--gpu {} is given with --backend {}; one of them is accepted: --gpu says for which device",
                       arguments.gpu, backend));
  }
  for (const auto& [name, npy, shape] : {std::tuple{"q", &arguments.attention.q, &arguments.attention.q_shape},
                                         {"k", &arguments.attention.k, &arguments.attention.k_shape},
                                         {"v", &arguments.attention.v, &arguments.attention.v_shape}}) {
    if (arguments.attention.input.empty() && npy->empty() && shape->empty()) {
      refuse(
          fmt::format("no {0}: give a .safetensors file that holds it, --{0} FILE.npy, or --{0}-shape BxHxSxD", name));
    }
  }
  if (arguments.measure) {
    if (arguments.has_shapes() || !arguments.gpu.empty() || arguments.is_backward() || backend == "cuda" ||
        backend == "amd") {
      refuse(
          "--measure is for forwards on the CPU, of tensors that are there; `heddle tune` measures kernels of a GPU");
    }
  }
  if (arguments.html.empty()) return;
  const AttentionArguments& given = arguments.attention;
  std::vector<InputFile> inputs = {{"", given.input}, {"--q", given.q}, {"--k", given.k}, {"--v", given.v}};
  add_named_files("--capture", given.captures, inputs);
  add_named_files("--backward", arguments.backward.tensors, inputs);
  check_output("--html", arguments.html, inputs);
  report_beside(arguments.html);
}

int explain(const ExplainArguments& arguments) {
  check_arguments(arguments);
  Progress progress(arguments.measure ? "plan and measure" : "plan");
  const Explained explained = plan_of(arguments);
  progress.finish();
  const Json memory = memory_json(explained);
  Json measured;
  if (explained.timing) measured = {{"seconds", explained.timing->seconds}, {"runs", explained.timing->runs}};
  if (!arguments.html.empty()) {
    save_text(path_of(arguments.html), explain_page({{"heddle", version()},
                                                     {"explanation", explained.explanation},
                                                     {"memory", memory},
                                                     {"measured", measured},
                                                     {"mask", mask_for_page(explained.block_mask.get())}}));
  }
  if (arguments.json) {
    Json json = {{"verb", "explain"},
                 {"heddle", version()},
                 {"backend", explained.explanation["plan"]["backend"]},
                 {"explanation", explained.explanation},
                 {"memory", memory},
                 {"measured", measured}};
    if (!arguments.html.empty()) json["html"] = arguments.html;
    print_json(json);
    return 0;
  }
  std::string text = explained.text + memory_text(memory);
  if (explained.timing) {
    text += fmt::format("{:<11}{}, the median of {} runs\n", "measured", describe_seconds(explained.timing->seconds),
                        explained.timing->runs);
  }
  if (!arguments.html.empty()) text += fmt::format("{}: the page\n", arguments.html);
  print_text(text);
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Work& chosen) {
  auto arguments = std::make_shared<ExplainArguments>();
  CLI::App* verb = app.add_subcommand("explain", "Plans an attention and prints what was decided, without running it.");
  add_attention_options(*verb, arguments->attention);
  add_backward_options(*verb, arguments->backward);
  for (const auto& [name, target] : {std::pair{"q", &arguments->attention.q_shape},
                                     {"k", &arguments->attention.k_shape},
                                     {"v", &arguments->attention.v_shape}}) {
    add_text(*verb, fmt::format("--{}-shape", name), *target, "BxHxSxD",
             fmt::format("plans for a {} of this shape and of --dtype (default f32) that\nneed not be there", name))
        ->group("Input");
  }
  add_text(*verb, "--gpu", arguments->gpu, "NAME", "plans for a GPU that need not be here: h200")->group("Execution");
  verb->add_flag("--measure", arguments->measure, "also runs it on the CPU, for about a second")->group("Execution");
  add_text(*verb, "--html", arguments->html, "FILE.html",
           "writes a page: the mask to zoom into, plan, forms of mods, times\nunder a roofline, what was rejected")
      ->group("Result");
  verb->add_flag("--json", arguments->json, "prints JSON")->group("Result");
  verb->footer(
      "Examples: what becomes of a sliding window, as a page; a prefill that is larger than this machine\n"
      "  heddle explain examples/data/minilm.safetensors --mask \"abs(q_idx - kv_idx) <= 64\" --html window.html\n"
      "  heddle explain --gpu h200 --dtype bf16 --q-shape 1x64x1000000x128 --k-shape 1x8x1000000x128 \\\n"
      "      --v-shape 1x8x1000000x128 --mask \"q_idx >= kv_idx\"");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return explain(*arguments); }; });
}

}  // namespace heddle::cli
