// heddle aot: compiles kernels ahead of time, into an archive for machines without a compiler.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "accepted.h"
#include "arguments.h"
#include "heddle/archive.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "output.h"
#include "progress_bar.h"
#include "run_verb.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

struct AotArguments {
  std::string calls, output, list;
  std::vector<std::string> gpus;
  int threads = 0;
  bool skip_refused = false, json = false;
};

std::string text_in(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file)
    throw Error(ErrorCode::io,
                fmt::format("{} cannot be read; a file of calls, a line of JSON each, is accepted", path));
  return text;
}

int write_one(const AotArguments& arguments) {
  if (arguments.calls.empty() || arguments.output.empty() || arguments.gpus.empty()) {
    throw Error(ErrorCode::invalid_argument, "CALLS, -o and --gpus are needed, or --list alone");
  }
  check_output("-o", arguments.output, {{"", arguments.calls == "-" ? "" : arguments.calls}});
  Stopwatch watch;
  Progress progress("compile");
  const ArchiveOptions options = {.skip_refused = arguments.skip_refused,
                                  .threads = arguments.threads,
                                  .progress = [&](double fraction) { progress.set(fraction); }};
  const ArchiveReport report = write_archive(arguments.output, text_in(arguments.calls), arguments.gpus, options);
  progress.finish();
  const double seconds = watch.lap();
  if (arguments.json) {
    print_json(Json{{"verb", "aot"},
                    {"heddle", version()},
                    {"calls", report.calls},
                    {"kernels", report.kernels},
                    {"rejected", report.rejected},
                    {"bytes", report.bytes},
                    {"refused", report.refused},
                    {"seconds", seconds},
                    {"output", arguments.output}});
    return 0;
  }
  std::string text;
  for (const std::string& sentence : report.refused) text += fmt::format("left out: {}\n", sentence);
  print_text(text + fmt::format("{}: {} kernels of {} calls, {} of them rejected, {} bytes, in {}\n", arguments.output,
                                report.kernels, report.calls, report.rejected, report.bytes,
                                describe_seconds(seconds)));
  return 0;
}

int list_one(const AotArguments& arguments) {
  if (!arguments.calls.empty() || !arguments.output.empty() || !arguments.gpus.empty()) {
    throw Error(ErrorCode::invalid_argument, "--list stands alone: CALLS, -o and --gpus write an archive");
  }
  ArchiveContents contents = read_archive(arguments.list);
  std::ranges::sort(contents.kernels, {}, [](const ArchiveContents::Kernel& kernel) {
    return std::tie(kernel.architecture, kernel.name, kernel.rejected);
  });
  if (arguments.json) {
    Json kernels = Json::array();
    for (const ArchiveContents::Kernel& kernel : contents.kernels) {
      kernels.push_back({{"name", kernel.name},
                         {"architecture", kernel.architecture},
                         {"compiler", kernel.compiler},
                         {"rejected", kernel.rejected},
                         {"bytes", kernel.bytes}});
    }
    print_json(Json{{"verb", "aot"}, {"heddle", contents.version}, {"kernels", kernels}});
    return 0;
  }
  std::string text = fmt::format("written by heddle {}\n", contents.version);
  for (const ArchiveContents::Kernel& kernel : contents.kernels) {
    text += fmt::format("{:8} {:>8}  {}  {}{}\n", kernel.architecture, kernel.bytes, kernel.compiler, kernel.name,
                        kernel.rejected ? "; rejected" : "");
  }
  print_text(text);
  return 0;
}

}  // namespace

void add_aot(CLI::App& app, Work& chosen) {
  auto arguments = std::make_shared<AotArguments>();
  CLI::App* verb = app.add_subcommand(
      "aot", "Compiles the kernels of calls ahead of time, into an archive. Needs a compiler and no GPU.");
  add_text(*verb, "CALLS", arguments->calls, " ",
           "a file of calls, a line of JSON each: the file of HEDDLE_LOG is one;\n- is the standard input");
  add_text(*verb, "-o,--output", arguments->output, "FILE", "gets the archive; written only when all went well");
  verb->add_option("--gpus", arguments->gpus,
                   "with commas between them: h100; h100:114, with so many\n"
                   "multiprocessors; or an architecture, all known GPUs of it:\n"
                   "sm_80, sm_86, sm_89, sm_90, sm_120, gfx1100, ...")
      ->option_text("NAMES")
      ->delimiter(',')
      ->allow_extra_args(false);
  verb->add_flag("--skip-refused", arguments->skip_refused,
                 "leaves out calls that are wrong, or that a GPU does not compute");
  verb->add_option("--threads", arguments->threads, "that compile; 0 (default): all cores")
      ->option_text("N")
      ->check(whole_from(0, 65536));
  add_text(*verb, "--list", arguments->list, "FILE", "prints what an archive holds, and writes none");
  verb->add_flag("--json", arguments->json, "prints JSON");
  verb->footer(
      "A process uses an archive by HEDDLE_ARCHIVE=FILE, or use_archive().\n"
      "Example:\n"
      "  HEDDLE_LOG=calls.jsonl heddle explain examples/data/minilm.safetensors --mask \"q_idx >= kv_idx\"\n"
      "  heddle aot calls.jsonl -o kernels.archive --gpus h100,sm_80");
  verb->callback([arguments, &chosen] {
    chosen = [arguments] { return arguments->list.empty() ? write_one(*arguments) : list_one(*arguments); };
  });
}

}  // namespace heddle::cli
