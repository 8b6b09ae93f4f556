#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "heddle/error.h"

namespace heddle::cli {
namespace {

[[noreturn]] void fail(std::string_view what, int error) {
  throw Error(ErrorCode::io, fmt::format("cannot write {}: {}", what, std::generic_category().message(error)));
}

}  // namespace

void print_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail("to the standard output", errno);
  }
}

void print_json(const Json& json) { print_text(json.dump(2) + "\n"); }

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.tmp", getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wbx");
  if (file == nullptr) fail(path.string(), errno);
  int error = std::fwrite(text.data(), 1, text.size(), file) == text.size() ? 0 : errno;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    std::remove(temporary.c_str());
    fail(path.string(), error);
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
