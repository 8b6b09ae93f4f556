// NVRTC as a compiler of the builder. Kernels are judged by its log, and by the machine code if the log says less.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <new>
#include <string_view>

#include "backend/cuda/jit/compiler_log.h"
#include "backend/cuda/jit/cubin_elf.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "backend/cuda/jit/nvrtc.h"
#include "backend/cuda/jit/nvrtc_options.h"
#include "backend/jit/run_program.h"
#include "backend/jit/runtime_compiler.h"

namespace heddle::cuda::jit {
namespace {

/// The log's figures; where it lacks one, the cubin's.
Resources figures_of(const Compilation& compilation) {
  Resources resources = resources_in(compilation.log);
  if (resources.complete()) return resources;
  const Resources code = resources_of(compilation.code);
  const auto fill = [](int& figure, int other) { figure = figure >= 0 ? figure : other; };
  fill(resources.registers, code.registers);
  fill(resources.spill_bytes, code.spill_bytes);
  fill(resources.stack_bytes, code.stack_bytes);
  fill(resources.static_shared_bytes, code.static_shared_bytes);
  return resources;
}

[[noreturn]] void throw_failure(const Source& source, const Compilation& compilation) {
  const std::string who = fmt::format("NVRTC {} ({})", compiler().version(), compiler().path);
  if (compilation.result == heddle::jit::kCompilerOutOfMemory) {
    throw Error(ErrorCode::out_of_memory, fmt::format("kernel '{}': {} ran out of memory", source.name, who));
  }
  if (compilation.result == kBuiltinsMissing) {
    throw Error(ErrorCode::unsupported, fmt::format("{} does not find libnvrtc-builtins.so.{}, which belongs beside it",
                                                    who, compiler().version()));
  }
  throw Error(ErrorCode::compile, fmt::format("kernel '{}' does not compile with {}: {}\n{}", source.name, who,
                                              compilation.result_text, compilation.log));
}

/// Why another kernel is better, if there is one: more spills than are bearable, then serialised products. Empty: no
/// reason.
std::string losses_of(const Compilation& compilation, int spill_bytes, int bearable) {
  std::string losses = performance_losses(compilation.log);
  if (spill_bytes <= bearable) return losses;
  const char* const words = resources_in(compilation.log).spill_bytes >= 0
                                ? "{} bytes are spilled"
                                : "the log does not say what is spilled, and {} bytes of stack may hold it";
  const std::string spills = fmt::format(fmt::runtime(words), spill_bytes);
  return losses.empty() ? spills : spills + "; " + losses;
}

/// The record to keep of a compilation. Throws when there is no kernel to judge.
heddle::jit::Record judge_kernel(const Source& source, const Compilation& compilation) {
  heddle::jit::Record record;
  record.code.log = without_times(compilation.log);
  record.code.compile_ms = compilation.milliseconds;
  if (compilation.result != 0) {
    record.verdict = performance_losses(compilation.log);
    if (record.verdict.empty() || compilation.result == heddle::jit::kCompilerOutOfMemory)
      throw_failure(source, compilation);
    return record;
  }
  const Resources resources = figures_of(compilation);
  if (!resources.complete() || compilation.code.empty()) {
    throw Error(ErrorCode::compile,
                fmt::format("kernel '{}': neither the log nor the machine code of NVRTC {} says what it takes of the "
                            "machine\n{}",
                            source.name, compiler().version(), compilation.log));
  }
  record.code.registers = resources.registers;
  record.code.spill_bytes = resources.spill_bytes;
  record.code.stack_bytes = resources.stack_bytes;
  record.code.static_shared_bytes = resources.static_shared_bytes;
  if (source.has_alternative)
    record.verdict = losses_of(compilation, resources.spill_bytes, source.bearable_spill_bytes);
  if (record.verdict.empty()) record.code.bytes = compilation.code;
  return record;
}

class NvrtcCompiler final : public heddle::jit::Compiler {
 public:
  const char* name() const override { return "NVRTC"; }
  std::string version() const override { return compiler().version(); }
  std::string path() const override { return compiler().path; }
  std::string identity() const override { return compiler().identity; }
  std::vector<std::string> options_of(const Source& source) const override { return jit::options_of(source); }
  Compilation compile(const Source& source, bool want_assembly) const override {
    return jit::compile(source, want_assembly);
  }
  heddle::jit::Record judge(const Source& source, const Compilation& compilation) const override {
    return judge_kernel(source, compilation);
  }
  heddle::jit::DumpSuffixes dump_suffixes() const override { return {".cu", ".ptx", ".cubin", ".sass"}; }

  void disassemble(const std::filesystem::path& code, const std::filesystem::path& to) const override {
    std::vector<std::filesystem::path> folders;
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
      const char* const root = std::getenv(variable);
      if (root != nullptr && *root != '\0') folders.push_back(std::filesystem::path(root) / "bin");
    }
    folders.emplace_back("/usr/local/cuda/bin");
    const std::array<std::string, 1> names{"nvdisasm"};
    const std::filesystem::path program = heddle::jit::find_program(names, folders);
    if (!program.empty()) heddle::jit::run_program(program, {"-c", code.string()}, to);
  }
};

/// Lives as long as the process: threads may still build while it ends.
heddle::jit::Builder& builder() {
  static const NvrtcCompiler& nvrtc = *new NvrtcCompiler;
  static heddle::jit::Builder& once = *new heddle::jit::Builder(nvrtc);
  return once;
}

}  // namespace

std::shared_ptr<const Cubin> build(const Source& source) { return builder().build(source); }

std::string key_of(const Source& source) { return builder().key_of(source); }

std::string compiler_missing() {
  try {
    compiler();
    return "";
  } catch (const std::bad_alloc&) {
    throw;  // it says nothing about what is missing
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string compiler_version() { return compiler().version(); }

int compiler_number(const Cubin& cubin) {
  constexpr std::string_view kName = "NVRTC ";
  if (!cubin.compiler.starts_with(kName)) return 0;
  const char* const end = cubin.compiler.data() + cubin.compiler.size();
  int major = 0, minor = 0;
  const char* const point = std::from_chars(cubin.compiler.data() + kName.size(), end, major).ptr;
  if (point != end) std::from_chars(point + 1, end, minor);
  return major * 1000 + minor * 10;
}

std::string cache_notes() { return builder().cache_notes(); }

Counts counts() { return builder().counts(); }

void forget() { builder().forget(); }

}  // namespace heddle::cuda::jit
