// heddle bench: the peaks of this machine, and the share of them that attention reaches.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "accepted.h"
#include "arguments.h"
#include "bench_cases.h"
#include "bench_report.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/files.h"
#include "output.h"
#include "peaks/amx_peak.h"
#include "progress_bar.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

struct BenchArguments {
  std::vector<std::string> passes = {"forward", "backward", "decode"}, dtypes, masks = {"full", "causal"};
  std::vector<std::int64_t> head_dims = {64, 128}, lengths = {512, 2048, 8192}, keys = {8192};
  std::int64_t heads = 0;
  int threads = 0;
  double seconds = 20;
  std::string backend = "cpu", json, svg;
};

template <class T>
void drop_repeated(std::vector<T>& values) {
  std::vector<T> once;
  for (const T& value : values) {
    if (std::ranges::find(once, value) == once.end()) once.push_back(value);
  }
  values = once;
}

void check(const BenchArguments& arguments) {
  if (arguments.backend != "cpu") {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--backend: '{}' is not measured by heddle bench; cpu is accepted. `heddle run --json` tells "
                    "the seconds of a run on a GPU",
                    arguments.backend));
  }
  if (!std::isfinite(arguments.seconds)) {  // CLI11's ranges let NaN pass
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--seconds: {} is not accepted; 0.001 to 86400 are", arguments.seconds));
  }
  if (!arguments.json.empty()) check_output("--json", arguments.json, {});
  if (!arguments.svg.empty()) check_output("--svg", arguments.svg, {});
  const auto whole = [](const std::string& path) {
    return std::filesystem::absolute(path_of(path)).lexically_normal();
  };
  if (!arguments.json.empty() && !arguments.svg.empty() && whole(arguments.json) == whole(arguments.svg)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--svg: {} is the file of --json", arguments.svg));
  }
  for (const std::string& output : {arguments.json, arguments.svg}) {
    if (!output.empty()) report_beside(output);
  }
}

/// The heads of a case: enough that a run at 8192 takes about the time of one at 512, and that each thread has work.
std::int64_t heads_of(const BenchArguments& arguments, int threads, std::int64_t length) {
  if (arguments.heads > 0) return arguments.heads;
  return std::max<std::int64_t>(std::clamp<std::int64_t>(4096 / length, 1, 8), (threads + 3) / 4);
}

std::vector<BenchCase> cases_of(const BenchArguments& arguments, int threads) {
  std::vector<BenchCase> cases;
  for (const std::string& pass : arguments.passes) {
    const bool decodes = pass == "decode";
    for (const std::string& dtype : arguments.dtypes) {
      for (const std::int64_t head_dim : arguments.head_dims) {
        for (const std::string& mask : decodes ? std::vector<std::string>{"full"} : arguments.masks) {
          for (const std::int64_t length : decodes ? arguments.keys : arguments.lengths) {
            cases.push_back({.pass = pass,
                             .dtype = dtype == "f32"   ? DType::f32
                                      : dtype == "f16" ? DType::f16
                                                       : DType::bf16,
                             .head_dim = head_dim,
                             .causal = mask == "causal",
                             .heads = decodes && arguments.heads == 0 ? 8 : heads_of(arguments, threads, length),
                             .queries = decodes ? 1 : length,
                             .keys = length});
          }
        }
      }
    }
  }
  return cases;
}

/// Rounds of one sample of everything, so that a neighbour's minute falls on all alike. At least one.
void measure(BenchReport& report, const BenchArguments& arguments) {
  using Clock = std::chrono::steady_clock;
  Progress progress("measure");
  const auto begin = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  // A sample of multiply-adds is 10 ms, and less where there is no time for some rounds of them.
  PeakRuns peaks(report.threads, std::clamp(arguments.seconds, 0.1, 10.0));
  for (const BenchCase& bench_case : cases_of(arguments, report.threads)) {
    report.cases.emplace_back(bench_case, report.threads).warm_up();
  }
  do {
    peaks.measure();
    for (CaseRun& run : report.cases) {
      if (run.samples() == 0 || passed() < arguments.seconds) run.measure();
      progress.set(std::min(1.0, passed() / arguments.seconds));
    }
  } while (passed() < arguments.seconds);
  progress.finish();
  report.peaks = peaks.peaks();
  report.read_bytes = peaks.read_bytes();
  report.seconds = passed();
}

int bench(BenchArguments arguments) {
  check(arguments);
  if (arguments.dtypes.empty()) {
    arguments.dtypes = {"f32"};
    if (peaks::has_amx()) arguments.dtypes.push_back("bf16");
  }
  for (auto* values : {&arguments.passes, &arguments.dtypes, &arguments.masks}) drop_repeated(*values);
  for (auto* values : {&arguments.head_dims, &arguments.lengths, &arguments.keys}) {
    std::ranges::sort(*values);
    drop_repeated(*values);
  }
  BenchReport report;
  const DeviceInfo machine = devices().front();
  report.machine = fmt::format("{}, {}", machine.name, machine.detail);
  report.threads =
      arguments.threads > 0 ? arguments.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  measure(report, arguments);
  if (!arguments.json.empty()) save_text(path_of(arguments.json), bench_json(report).dump(2) + "\n");
  if (!arguments.svg.empty()) save_text(path_of(arguments.svg), bench_svg(report));
  std::string text = bench_text(report);
  for (const std::string& output : {arguments.json, arguments.svg}) {
    if (!output.empty()) text += fmt::format("{}: written\n", output);
  }
  print_text(text);
  return 0;
}

void add_options(CLI::App& verb, BenchArguments& arguments) {
  const auto add_list = [&](const std::string& name, auto& values, const CLI::Validator& accepted,
                            const std::string& help) {
    verb.add_option(name, values, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->option_text("A,B,...")
        ->check(accepted)
        ->group("Cases");
  };
  constexpr std::int64_t kMostKeys = std::int64_t{1} << 24;
  add_list("--passes", arguments.passes, one_of({"forward", "backward", "decode"}),
           "forward, backward and decode (one query); default: all");
  add_list("--dtype", arguments.dtypes, one_of({"f32", "bf16", "f16"}),
           "f32, bf16 and f16; default: f32, and bf16 where AMX multiplies");
  add_list("--head-dims", arguments.head_dims, whole_from(1, 1024), "head dimensions; default 64,128");
  add_list("--seqlens", arguments.lengths, whole_from(1, kMostKeys),
           "queries and keys of forward and backward; default\n512,2048,8192");
  add_list("--masks", arguments.masks, one_of({"full", "causal"}),
           "full and causal, of forward and backward; default: both");
  add_list("--keys", arguments.keys, whole_from(1, kMostKeys), "keys of a decode; default 8192");
  verb.add_option("--heads", arguments.heads,
                  "query heads, and as many of keys; default: 8 in a decode, else\n"
                  "4096 / S, within 1 and 8, and at least a quarter of the threads")
      ->option_text("N")
      ->check(whole_from(1, 4096))
      ->group("Cases");
  const std::string execution = "Execution";
  verb.add_option("--threads", arguments.threads,
                  "CPU threads of attention, and the most of the peaks; 0 (default):\nall cores")
      ->option_text("N")
      ->check(whole_from(0, 1024))
      ->group(execution);
  verb.add_option("--seconds", arguments.seconds,
                  "how long to measure; default 20. Each case is measured once even\nif that takes longer")
      ->option_text("X")
      ->check(number_from(0.001, 86400))
      ->group(execution);
  add_text(verb, "--backend", arguments.backend, "NAME", "cpu alone; others are refused")->group(execution);
  const std::string result = "Result";
  add_text(verb, "--json", arguments.json, "FILE.json", "writes the figures as JSON. - is the standard output")
      ->group(result);
  add_text(verb, "--svg", arguments.svg, "FILE.svg", "writes a picture: shares of the peak over lengths")
      ->group(result);
}

}  // namespace

void add_bench(CLI::App& app, Work& chosen) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* verb = app.add_subcommand("bench", "Measures this machine's peaks, and attention beside them.");
  add_options(*verb, *arguments);
  verb->footer(
      "Example: a short look at two lengths in f32\n"
      "  heddle bench --dtype f32 --seqlens 128,512 --keys 1024 --seconds 0.5");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return bench(*arguments); }; });
}

}  // namespace heddle::cli
