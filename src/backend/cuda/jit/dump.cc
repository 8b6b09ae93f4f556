#include "backend/cuda/jit/dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/folder.h"
#include "backend/cuda/jit/includes.h"
#include "backend/cuda/jit/key.h"
#include "base/environment.h"

namespace heddle::cuda::jit {
namespace {

namespace fs = std::filesystem;

/// A file name of a kernel's name: "forward_sm90 bf16 d128" > "forward_sm90_bf16_d128".
std::string stem_of(const Source& source, const std::string& key) {
  constexpr std::size_t kLongest = 120;
  std::string stem = source.name.substr(0, kLongest);
  std::replace_if(
      stem.begin(), stem.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; }, '_');
  return fmt::format("{}-{}", stem, key);
}

std::string whole_text(const Source& source) {
  std::vector<std::string> names;
  for (const Header* header : headers_in_use(source)) names.push_back(header->name);
  return fmt::format(
      "// {}, with NVRTC {}\n// options: {}\n// headers, each in the place of its first mention: {}\n\n{}", source.name,
      compiler().version(), fmt::join(options_of(source), " "),
      names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")), in_one_file(source));
}

std::string summary(const Source& source, const std::string& key, const Compilation& compilation,
                    const Record* record) {
  nlohmann::ordered_json json{{"name", source.name},
                              {"key", key},
                              {"architecture", source.architecture},
                              {"compiler", compiler().version()},
                              {"compiler_path", compiler().path},
                              {"options", options_of(source)},
                              {"result", compilation.result_text}};
  if (record != nullptr) {
    const Cubin& cubin = record->cubin;
    json["from"] = cubin.from == Cubin::From::disk ? "disk" : "compiler";
    json["rejected"] = record->verdict.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(record->verdict);
    json["registers"] = cubin.registers;
    json["spill_bytes"] = cubin.spill_bytes;
    json["stack_bytes"] = cubin.stack_bytes;
    json["static_shared_bytes"] = cubin.static_shared_bytes;
    json["compile_ms"] = cubin.compile_ms;
  }
  // A name or an option may hold any bytes; JSON may not.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

/// nvdisasm of PATH, or of a toolkit; empty when there is none.
fs::path find_nvdisasm() {
  std::vector<fs::path> folders;
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  const std::string path = variable("PATH");
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    folders.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const std::string& root : {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (!root.empty()) folders.push_back(fs::path(root) / "bin");
  }
  for (const fs::path& folder : folders) {
    if (folder.is_absolute() && ::access((folder / "nvdisasm").c_str(), X_OK) == 0) return folder / "nvdisasm";
  }
  return {};
}

/// Runs `nvdisasm -c CUBIN > SASS`. Where it fails, or there is none, there is no such file.
void disassemble(const fs::path& cubin, const fs::path& sass) {
  const fs::path program = find_nvdisasm();
  if (program.empty()) return;
  std::string name = "nvdisasm", option = "-c", input = cubin.string();
  char* const arguments[] = {name.data(), option.data(), input.data(), nullptr};
  posix_spawn_file_actions_t actions;
  if (::posix_spawn_file_actions_init(&actions) != 0) return;
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, sass.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = -1;
  const bool started = ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ) == 0;
  ::posix_spawn_file_actions_destroy(&actions);
  if (started) ::waitpid(child, &status, 0);
  std::error_code ignored;
  if (status != 0) fs::remove(sass, ignored);
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::io,
              fmt::format("{} asks for kernels to be kept, but {} {}", base::name_of(base::Option::dump), path, why));
}

}  // namespace

void dump(const std::string& folder, const Source& source, const std::string& key, const Compilation& compilation,
          const Record* record) {
  std::string why;
  const std::optional<base::Folder> open = base::Folder::open(folder, base::Folder::Whose::any, why);
  if (!open) refuse(folder, why);
  const std::string stem = stem_of(source, key);
  const auto write = [&](const char* suffix, std::span<const char> bytes) {
    if (!open->write(stem + suffix, bytes, why)) refuse((fs::path(folder) / (stem + suffix)).string(), why);
  };
  write(".cu", whole_text(source));
  write(".log", compilation.log + "\n");
  write(".json", summary(source, key, compilation, record));
  if (!compilation.ptx.empty()) write(".ptx", compilation.ptx);
  const std::vector<char>& cubin =
      record != nullptr && !record->cubin.bytes.empty() ? record->cubin.bytes : compilation.cubin;
  if (cubin.empty()) return;
  write(".cubin", cubin);
  disassemble(fs::path(folder) / (stem + ".cubin"), fs::path(folder) / (stem + ".sass"));
}

}  // namespace heddle::cuda::jit
