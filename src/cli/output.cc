#include "output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "arguments.h"
#include "heddle/error.h"
#include "named_values.h"

namespace heddle::cli {
namespace {

[[noreturn]] void fail(std::string_view what, const std::string& why) {
  throw Error(ErrorCode::io, fmt::format("cannot write {}: {}", what, why));
}

constexpr const char* kStandardOutput = "/dev/stdout";

bool reports_to_stderr = false;

}  // namespace

std::string path_of(const std::string& output) { return output == "-" ? kStandardOutput : output; }

void report_beside(const std::string& output) {
  const std::string path = path_of(output);
  struct stat given {
  }, standard{}, null{};
  const bool same = ::stat(path.c_str(), &given) == 0 && ::fstat(STDOUT_FILENO, &standard) == 0 &&
                    given.st_dev == standard.st_dev && given.st_ino == standard.st_ino;
  // Output to /dev/null is thrown away, so nothing is mixed there.
  const bool kept = ::stat("/dev/null", &null) != 0 || given.st_dev != null.st_dev || given.st_ino != null.st_ino;
  if (path == kStandardOutput || (same && kept)) reports_to_stderr = true;
}

void print_text(std::string_view text) {
  std::FILE* stream = reports_to_stderr ? stderr : stdout;
  if (std::fwrite(text.data(), 1, text.size(), stream) != text.size() || std::fflush(stream) != 0) {
    fail(reports_to_stderr ? "to the standard error" : "to the standard output",
         std::generic_category().message(errno));
  }
}

void print_json(const Json& json) { print_text(json.dump(2) + "\n"); }

void check_output(std::string_view option, const std::string& output, const std::vector<InputFile>& inputs) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const InputFile& input : inputs) {
    // Equivalent: hard and symbolic links are other names of the same file.
    if (input.path.empty() || !fs::equivalent(input.path, path_of(output), error)) continue;
    const std::string given = input.given_as.empty() ? "" : " of " + input.given_as;
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} is the input{}", option, output, given));
  }
  const fs::path path = path_of(output);
  if (fs::is_directory(path, error)) fail(output, "it is a folder");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error)) fail(output, fmt::format("there is no folder {}", folder.string()));
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) fail(output, error.message());
}

void add_named_files(const std::string& option, const std::vector<std::string>& assignments,
                     std::vector<InputFile>& inputs) {
  for (const std::string& text : assignments) {
    inputs.push_back({option + " " + text, file_of(parse_assignment(option, text).second)});
  }
}

std::string describe(const ConstTensorView& tensor) {
  return fmt::format("{} {}", to_string(tensor.shape), name(tensor.dtype));
}

Json to_json(const ConstTensorView& tensor) {
  return {{"dtype", name(tensor.dtype)}, {"shape", Json(std::vector(tensor.shape.begin(), tensor.shape.end()))}};
}

std::string describe(const BlockMask& mask) {
  const BlockMask::Statistics statistics = mask.statistics();
  return fmt::format("{:.1f} % of {} blocks of {}x{}: {} full, {} partial, {} empty", 100 * statistics.density(),
                     statistics.blocks, mask.block().q, mask.block().kv, statistics.full, statistics.partial,
                     statistics.empty);
}

Json to_json(const BlockMask& mask) {
  const BlockMask::Statistics statistics = mask.statistics();
  return {{"block", {mask.block().q, mask.block().kv}},
          {"blocks", statistics.blocks},
          {"full", statistics.full},
          {"partial", statistics.partial},
          {"empty", statistics.empty},
          {"density", statistics.density()},
          {"runs", statistics.runs},
          {"bytes", statistics.bytes},
          {"evaluated_tiles", statistics.evaluated_tiles}};
}

std::string describe_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

}  // namespace heddle::cli
