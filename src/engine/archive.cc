#include "heddle/archive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "backend/jit/archive_file.h"
#include "backend/jit/recording.h"
#include "base/parallel.h"
#include "device/known_gpus.h"
#include "engine/compile_call.h"
#include "heddle/error.h"
#include "heddle/files.h"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

struct Line {
  std::int64_t number;
  Json call;
};

/// The call of a line: an object without "event", or an event's "call". Nothing for events without one.
std::optional<Json> call_in(const std::string& line, std::int64_t number) {
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("line {} of the calls is '{}'; an object of JSON is accepted", number, line.substr(0, 80)));
  }
  if (!json.contains("event")) return json;
  const auto call = json.find("call");
  return call == json.end() ? std::nullopt : std::optional(*call);
}

/// Equal calls once.
std::vector<Line> lines_of(std::string_view calls) {
  std::vector<Line> lines;
  std::set<std::string> seen;
  std::int64_t number = 0;
  while (!calls.empty()) {
    const std::size_t newline = calls.find('\n');
    const std::string line(calls.substr(0, newline));
    calls.remove_prefix(newline == std::string_view::npos ? calls.size() : newline + 1);
    ++number;
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    std::optional<Json> call = call_in(line, number);
    if (call && seen.insert(call->dump()).second) lines.push_back({number, std::move(*call)});
  }
  if (lines.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "the calls have none; a line of JSON each is accepted, such as HEDDLE_LOG records");
  }
  return lines;
}

std::vector<std::string> gpus_of(std::span<const std::string> names) {
  std::vector<std::string> gpus;
  for (const std::string& name : names) {
    for (std::string& gpu : device::known_gpus_of(name)) {
      if (std::ranges::find(gpus, gpu) == gpus.end()) gpus.push_back(std::move(gpu));
    }
  }
  if (gpus.empty()) throw Error(ErrorCode::invalid_argument, "gpus has no name; at least one is accepted");
  return gpus;
}

/// A call that a GPU refused.
struct Refusal {
  ErrorCode code;
  std::string sentence;
};

/// Refusals, one for each line and GPU; none where the kernels were compiled.
std::vector<std::optional<Refusal>> compile_all(const std::vector<Line>& lines, const std::vector<std::string>& gpus,
                                                const ArchiveOptions& options, jit::Recording& recording) {
  const auto count = std::ssize(lines) * std::ssize(gpus);
  std::vector<std::optional<Refusal>> refused(static_cast<std::size_t>(count));
  std::mutex mutex;
  std::int64_t done = 0;
  base::parallel_tasks(options.threads, count, [&](int, std::int64_t task) {
    const Line& line = lines[static_cast<std::size_t>(task / std::ssize(gpus))];
    const std::string& gpu = gpus[static_cast<std::size_t>(task % std::ssize(gpus))];
    try {
      const jit::Recording::Scope scope(recording);
      engine::compile_call(line.call, gpu);
    } catch (const Error& error) {
      refused[static_cast<std::size_t>(task)] = {error.code(),
                                                 fmt::format("line {} on {}: {}", line.number, gpu, error.what())};
    }
    const std::scoped_lock lock(mutex);
    ++done;
    if (options.progress) options.progress(static_cast<double>(done) / static_cast<double>(count));
  });
  return refused;
}

}  // namespace

ArchiveReport write_archive(const std::string& path, std::string_view calls, std::span<const std::string> gpus,
                            const ArchiveOptions& options) {
  const std::vector<Line> lines = lines_of(calls);
  const std::vector<std::string> all_gpus = gpus_of(gpus);
  jit::Recording recording;
  ArchiveReport report{.calls = std::ssize(lines)};
  for (const auto& refusal : compile_all(lines, all_gpus, options, recording)) {
    if (!refusal) continue;
    const bool of_call = refusal->code == ErrorCode::unsupported || refusal->code == ErrorCode::invalid_argument;
    if (!options.skip_refused || !of_call) {
      throw Error(refusal->code, fmt::format("{}\nNothing was written", refusal->sentence));
    }
    report.refused.push_back(refusal->sentence);
  }
  std::vector<jit::ArchivedKernel> kernels = recording.kernels();
  if (kernels.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("no call runs a kernel on these GPUs, so nothing was written:\n{}",
                                                    fmt::join(report.refused, "\n")));
  }
  report.kernels = std::ssize(kernels);
  report.rejected = std::ranges::count_if(kernels, [](const auto& kernel) { return !kernel.record.verdict.empty(); });
  const std::vector<char> bytes = jit::encode_archive(jit::archive_version(), std::move(kernels));
  report.bytes = std::ssize(bytes);
  save_text(path, {bytes.data(), bytes.size()});
  return report;
}

}  // namespace heddle
