#include "backend/jit/dump.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "backend/jit/includes.h"
#include "base/environment.h"
#include "base/folder.h"
#include "heddle/error.h"

namespace heddle::jit {
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

std::string whole_text(const Compiler& compiler, const Source& source) {
  std::vector<std::string> names;
  for (const Header* header : headers_in_use(source)) names.push_back(header->name);
  return fmt::format("// {}, with {} {}\n// options: {}\n// headers, each in the place of its first mention: {}\n\n{}",
                     source.name, compiler.name(), compiler.version(), fmt::join(compiler.options_of(source), " "),
                     names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")), in_one_file(source));
}

std::string summary(const Compiler& compiler, const Source& source, const std::string& key,
                    const Compilation& compilation, const Record* record) {
  nlohmann::ordered_json json{{"name", source.name},
                              {"key", key},
                              {"architecture", source.architecture},
                              {"compiler", compiler.version()},
                              {"compiler_path", compiler.path()},
                              {"options", compiler.options_of(source)},
                              {"result", compilation.result_text}};
  if (record != nullptr) {
    const MachineCode& code = record->code;
    json["from"] = code.from == MachineCode::From::disk ? "disk" : "compiler";
    json["rejected"] = record->verdict.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(record->verdict);
    json["registers"] = code.registers;
    json["spill_bytes"] = code.spill_bytes;
    json["stack_bytes"] = code.stack_bytes;
    json["static_shared_bytes"] = code.static_shared_bytes;
    json["compile_ms"] = code.compile_ms;
  }
  // A name or an option may hold any bytes; JSON may not.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::io,
              fmt::format("{} asks for kernels to be kept, but {} {}", base::name_of(base::Option::dump), path, why));
}

}  // namespace

void dump(const Compiler& compiler, const std::string& folder, const Source& source, const std::string& key,
          const Compilation& compilation, const Record* record) {
  std::string why;
  const std::optional<base::Folder> open = base::Folder::open(folder, base::Folder::Whose::any, why);
  if (!open) refuse(folder, why);
  const std::string stem = stem_of(source, key);
  const auto write = [&](const char* suffix, std::span<const char> bytes) {
    if (!open->write(stem + suffix, bytes, why)) refuse((fs::path(folder) / (stem + suffix)).string(), why);
  };
  const DumpSuffixes suffixes = compiler.dump_suffixes();
  write(suffixes.source, whole_text(compiler, source));
  write(".log", compilation.log + "\n");
  write(".json", summary(compiler, source, key, compilation, record));
  if (!compilation.assembly.empty()) write(suffixes.assembly, compilation.assembly);
  const std::vector<char>& code =
      record != nullptr && !record->code.bytes.empty() ? record->code.bytes : compilation.code;
  if (code.empty()) return;
  write(suffixes.code, code);
  compiler.disassemble(fs::path(folder) / (stem + suffixes.code), fs::path(folder) / (stem + suffixes.disassembly));
}

}  // namespace heddle::jit
