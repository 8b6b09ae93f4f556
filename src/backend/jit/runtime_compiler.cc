#include "backend/jit/runtime_compiler.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "heddle/error.h"

namespace heddle::jit {
namespace {

std::vector<const char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  pointers.reserve(texts.size());
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return pointers;
}

/// One program, destroyed with this object.
class OpenProgram {
 public:
  OpenProgram(const RuntimeCompiler& compiler, const Source& source, const ProgramText& text) : compiler_(compiler) {
    const std::vector<const char*> headers = pointers_to(text.headers);
    const int result = compiler_.create(&program_, text.text.c_str(), text.file.c_str(),
                                        static_cast<int>(headers.size()), headers.data(), text.header_names.data());
    if (result == 0) return;
    throw Error(
        result == kCompilerOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::compile,
        fmt::format("{} makes no program of '{}': {}", compiler_.name, source.name, compiler_.error_string(result)));
  }
  ~OpenProgram() { compiler_.destroy(&program_); }
  OpenProgram(const OpenProgram&) = delete;
  OpenProgram& operator=(const OpenProgram&) = delete;

  RuntimeProgram get() const { return program_; }

  template <class Bytes>
  Bytes fetch(int (*size_of)(RuntimeProgram, std::size_t*), int (*copy)(RuntimeProgram, char*)) const {
    std::size_t size = 0;
    if (size_of(program_, &size) != 0 || size == 0) return {};
    Bytes bytes(size, '\0');
    if (copy(program_, bytes.data()) != 0) return {};
    return bytes;
  }

 private:
  const RuntimeCompiler& compiler_;
  RuntimeProgram program_ = nullptr;
};

/// Without the zero byte at its end, and blank lines.
std::string trimmed(std::string text) {
  text.resize(text.find_last_not_of(std::string_view("\0\n ", 3)) + 1);
  return text;
}

}  // namespace

std::string find_functions(const libraries::Library& library, const RuntimeCompilerNames& names,
                           RuntimeCompiler& compiler) {
  std::string missing;
  const auto find = [&](auto& function, const std::string& name) {
    if (!library.find(function, (names.prefix + name).c_str()) && missing.empty()) missing = names.prefix + name;
  };
  find(compiler.version, "Version");
  find(compiler.error_string, "GetErrorString");
  find(compiler.create, "CreateProgram");
  find(compiler.compile, "CompileProgram");
  find(compiler.log_size, "GetProgramLogSize");
  find(compiler.log, "GetProgramLog");
  find(compiler.code_size, fmt::format("Get{}Size", names.code));
  find(compiler.code, "Get" + names.code);
  if (!names.assembly.empty()) {
    find(compiler.assembly_size, fmt::format("Get{}Size", names.assembly));
    find(compiler.assembly, "Get" + names.assembly);
  }
  find(compiler.destroy, "DestroyProgram");
  return missing;
}

Compilation compile(const RuntimeCompiler& compiler, const Source& source, const ProgramText& text,
                    const std::vector<std::string>& options, bool want_assembly) {
  const auto begin = std::chrono::steady_clock::now();
  const OpenProgram program(compiler, source, text);
  const std::vector<const char*> option_pointers = pointers_to(options);
  Compilation compilation;
  compilation.result =
      compiler.compile(program.get(), static_cast<int>(option_pointers.size()), option_pointers.data());
  compilation.result_text = compiler.error_string(compilation.result);
  compilation.log = trimmed(program.fetch<std::string>(compiler.log_size, compiler.log));
  if (compilation.result == 0) {
    compilation.code = program.fetch<std::vector<char>>(compiler.code_size, compiler.code);
  }
  if (want_assembly && compiler.assembly != nullptr) {
    compilation.assembly = trimmed(program.fetch<std::string>(compiler.assembly_size, compiler.assembly));
  }
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
  compilation.milliseconds = time.count();
  return compilation;
}

}  // namespace heddle::jit
