#include "bench_report.h"

#include <fmt/format.h>

#include <utility>

#include "bench_picture.h"
#include "heddle/devices.h"

namespace heddle::cli {
namespace {

double peak_of(const BenchReport& report, const CaseRun& run) {
  switch (run.yardstick()) {
    case Yardstick::amx:
      return median(report.peaks.back().amx);
    case Yardstick::read:
      return run.read_gigabytes_per_second();
    case Yardstick::fma:
      break;
  }
  return median(report.peaks.back().fma);
}

double share_of(const BenchReport& report, const CaseRun& run) {
  return (run.bench_case().is_decode() ? run.gigabytes_per_second() : run.gflops()) / peak_of(report, run);
}

const char* name_of(Yardstick yardstick) {
  switch (yardstick) {
    case Yardstick::amx:
      return "AMX";
    case Yardstick::read:
      return "read";
    case Yardstick::fma:
      break;
  }
  return "FMA";
}

}  // namespace

std::string bench_text(const BenchReport& report) {
  std::string text =
      fmt::format("{}; heddle {}; medians of samples in {:.1f} s\n\n", report.machine, version(), report.seconds);
  text += fmt::format("{:>7} {:>16} {:>17} {:>10} {:>8}\n", "threads", "FMA f32 GFLOP/s", "AMX bf16 GFLOP/s",
                      "read GB/s", "samples");
  for (const Peaks& peak : report.peaks) {
    const std::string amx = peak.amx.empty() ? "-" : fmt::format("{:.1f}", median(peak.amx));
    text += fmt::format("{:>7} {:>16.1f} {:>17} {:>10.1f} {:>8}\n", peak.threads, median(peak.fma), amx,
                        median(peak.read), peak.fma.size());
  }
  text += fmt::format("\nattention on {} thread{}\n", report.threads, report.threads == 1 ? "" : "s");
  text += fmt::format("{:<8} {:<5} {:>4} {:<6} {:>6} {:>7} {:>9} {:>8} {:>7} {:>6} {:<4} {:>8}\n", "pass", "dtype", "D",
                      "mask", "heads", "keys", "time", "GFLOP/s", "GB/s", "share", "of", "samples");
  for (const CaseRun& run : report.cases) {
    const BenchCase& one = run.bench_case();
    const std::string read = one.is_decode() ? fmt::format("{:.1f}", run.gigabytes_per_second()) : "-";
    text += fmt::format("{:<8} {:<5} {:>4} {:<6} {:>6} {:>7} {:>9} {:>8.1f} {:>7} {:>6.2f} {:<4} {:>8}\n", one.pass,
                        name(one.dtype), one.head_dim, one.causal ? "causal" : "full", one.heads, one.keys,
                        describe_seconds(run.seconds()), run.gflops(), read, share_of(report, run),
                        name_of(run.yardstick()), run.samples());
  }
  return text;
}

Json bench_json(const BenchReport& report) {
  Json peaks = Json::array(), cases = Json::array();
  for (const Peaks& peak : report.peaks) {
    peaks.push_back({{"threads", peak.threads},
                     {"fma_f32_gflops", median(peak.fma)},
                     {"amx_bf16_gflops", peak.amx.empty() ? Json() : Json(median(peak.amx))},
                     {"read_gigabytes_per_second", median(peak.read)},
                     {"samples", peak.fma.size()}});
  }
  for (const CaseRun& run : report.cases) {
    const BenchCase& one = run.bench_case();
    Json entry = {{"pass", one.pass},
                  {"dtype", name(one.dtype)},
                  {"head_dim", one.head_dim},
                  {"mask", one.causal ? "causal" : "full"},
                  {"heads", one.heads},
                  {"queries", one.queries},
                  {"keys", one.keys},
                  {"seconds", run.seconds()},
                  {"gflops", run.gflops()},
                  {"gigabytes_per_second", nullptr},
                  {"yardstick", name_of(run.yardstick())},
                  {"peak", peak_of(report, run)},
                  {"share", share_of(report, run)},
                  {"samples", run.samples()}};
    if (one.is_decode()) entry["gigabytes_per_second"] = run.gigabytes_per_second();
    cases.push_back(std::move(entry));
  }
  return {{"verb", "bench"},
          {"heddle", version()},
          {"backend", "cpu"},
          {"machine", report.machine},
          {"threads", report.threads},
          {"seconds", report.seconds},
          {"read_bytes", report.read_bytes},
          {"peaks", std::move(peaks)},
          {"cases", std::move(cases)}};
}

std::string bench_svg(const BenchReport& report) {
  std::vector<Panel> panels;
  for (const CaseRun& run : report.cases) {
    const BenchCase& one = run.bench_case();
    const std::string title =
        fmt::format("{}, {}: share of {}", one.pass, name(one.dtype), one.is_decode() ? "a plain read" : "the peak");
    if (panels.empty() || panels.back().title != title) {
      panels.push_back({title, one.is_decode() ? "keys" : "queries and keys", {}});
    }
    std::vector<Curve>& curves = panels.back().curves;
    const std::string curve = fmt::format("D {}, {}", one.head_dim, one.causal ? "causal" : "full");
    if (curves.empty() || curves.back().name != curve) curves.push_back({curve, one.causal, {}});
    const std::string speed = one.is_decode() ? fmt::format("{:.1f} GB/s", run.gigabytes_per_second())
                                              : fmt::format("{:.1f} GFLOP/s", run.gflops());
    curves.back().points.push_back(
        {static_cast<double>(one.keys), share_of(report, run),
         fmt::format("{} keys, {} heads: {}, {:.0f} % of {:.1f} ({})", one.keys, one.heads, speed,
                     100 * share_of(report, run), peak_of(report, run), name_of(run.yardstick()))});
  }
  return bench_picture(fmt::format("heddle {} on {} thread{} of {}", version(), report.threads,
                                   report.threads == 1 ? "" : "s", report.machine),
                       panels);
}

}  // namespace heddle::cli
