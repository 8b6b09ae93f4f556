// hipRTC as a compiler of the builder: what it makes is judged by the code object's own metadata.
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <new>

#include "backend/amd/jit/amd_jit.h"
#include "backend/amd/jit/code_object.h"
#include "backend/amd/jit/hiprtc.h"
#include "backend/jit/run_program.h"
#include "backend/jit/runtime_compiler.h"

namespace heddle::amd {
namespace {

[[noreturn]] void throw_failure(const jit::Source& source, const jit::Compilation& compilation) {
  const std::string who = fmt::format("hipRTC {} ({})", compiler_version(), hiprtc().path);
  if (compilation.result == jit::kCompilerOutOfMemory) {
    throw Error(ErrorCode::out_of_memory, fmt::format("kernel '{}': {} ran out of memory", source.name, who));
  }
  throw Error(ErrorCode::compile, fmt::format("kernel '{}' does not compile with {} for {}: {}\n{}", source.name, who,
                                              source.architecture, compilation.result_text, compilation.log));
}

std::string verdict_on(const jit::Source& source, const CodeObjectFacts& facts) {
  if (source.has_alternative) {
    if (facts.spilled_vector > 0) return fmt::format("{} vector registers are spilled", facts.spilled_vector);
    if (facts.scratch_bytes > 0) return fmt::format("a thread needs {} bytes of scratch memory", facts.scratch_bytes);
  }
  // Never right: a launch does not know how much scratch memory to give.
  return facts.dynamic_stack ? "its stack has no fixed size" : "";
}

jit::Record judge_kernel(const jit::Source& source, const jit::Compilation& compilation) {
  constexpr int kRegisterBytes = 4;
  if (compilation.result != 0) throw_failure(source, compilation);
  const std::optional<CodeObjectFacts> facts = facts_of(compilation.code);
  if (!facts) {
    throw Error(ErrorCode::compile, fmt::format("kernel '{}': what hipRTC {} made is no code object that says what it "
                                                "takes of the machine\n{}",
                                                source.name, compiler_version(), compilation.log));
  }
  jit::Record record;
  record.verdict = verdict_on(source, *facts);
  record.code.log = fmt::format(
      "{}{}{} vector registers, {} spilled, {} scalar ones spilled, {} bytes of scratch memory, {} bytes of "
      "LDS",
      compilation.log, compilation.log.empty() ? "" : "\n", facts->vector_registers, facts->spilled_vector,
      facts->spilled_scalar, facts->scratch_bytes, facts->shared_bytes);
  record.code.compile_ms = compilation.milliseconds;
  record.code.registers = facts->vector_registers;
  record.code.spill_bytes = kRegisterBytes * facts->spilled_vector;
  record.code.stack_bytes = facts->scratch_bytes;
  record.code.static_shared_bytes = facts->shared_bytes;
  if (record.verdict.empty()) record.code.bytes = compilation.code;
  return record;
}

class HiprtcCompiler final : public jit::Compiler {
 public:
  const char* name() const override { return "hipRTC"; }
  std::string version() const override { return compiler_version(); }
  std::string path() const override { return hiprtc().path; }
  std::string identity() const override { return hiprtc().identity; }
  std::vector<std::string> options_of(const jit::Source& source) const override { return amd::options_of(source); }
  jit::Compilation compile(const jit::Source& source, bool) const override { return amd::compile(source); }
  jit::Record judge(const jit::Source& source, const jit::Compilation& compilation) const override {
    return judge_kernel(source, compilation);
  }
  jit::DumpSuffixes dump_suffixes() const override { return {".hip", ".s", ".hsaco", ".isa"}; }

  void disassemble(const std::filesystem::path& code, const std::filesystem::path& to) const override {
    std::vector<std::filesystem::path> folders;
    if (const char* const root = std::getenv("ROCM_PATH"); root != nullptr && *root != '\0') {
      folders.push_back(std::filesystem::path(root) / "llvm" / "bin");
    }
    folders.emplace_back("/opt/rocm/llvm/bin");
    const std::array<std::string, 2> names{"llvm-objdump", "llvm-objdump-19"};
    const std::filesystem::path program = jit::find_program(names, folders);
    if (!program.empty()) jit::run_program(program, {"-d", code.string()}, to);
  }
};

}  // namespace

/// Lives as long as the process: threads may still build while it ends.
jit::Builder& builder() {
  static const HiprtcCompiler& compiler = *new HiprtcCompiler;
  static jit::Builder& once = *new jit::Builder(compiler);
  return once;
}

std::string compiler_missing() {
  try {
    hiprtc();
    return "";
  } catch (const std::bad_alloc&) {
    throw;  // it says nothing about what is missing
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string compiler_version() { return fmt::format("{}.{}", hiprtc().major, hiprtc().minor); }

}  // namespace heddle::amd
