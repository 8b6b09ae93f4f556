// A run of a compiler that is a library: NVRTC's interface, which hipRTC has under names of its own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backend/jit/compiler.h"
#include "backend/jit/source.h"
#include "backend/libraries/library.h"

namespace heddle::jit {

using RuntimeProgram = struct RuntimeProgramHandle*;

/// Each returns 0, or the compiler's number of what went wrong.
struct RuntimeCompiler {
  const char* name;  // "NVRTC"
  int (*version)(int* major, int* minor) = nullptr;
  const char* (*error_string)(int result) = nullptr;
  int (*create)(RuntimeProgram*, const char* text, const char* name, int headers, const char* const* header_texts,
                const char* const* header_names) = nullptr;
  int (*compile)(RuntimeProgram, int options, const char* const* option_texts) = nullptr;
  int (*log_size)(RuntimeProgram, std::size_t*) = nullptr;
  int (*log)(RuntimeProgram, char*) = nullptr;
  int (*code_size)(RuntimeProgram, std::size_t*) = nullptr;
  int (*code)(RuntimeProgram, char*) = nullptr;
  int (*assembly_size)(RuntimeProgram, std::size_t*) = nullptr;  // null: the compiler gives no assembly
  int (*assembly)(RuntimeProgram, char*) = nullptr;
  int (*destroy)(RuntimeProgram*) = nullptr;
};
/// How a library calls these functions: prefix "nvrtc" and code "CUBIN" are nvrtcCreateProgram, nvrtcGetCUBINSize.
struct RuntimeCompilerNames {
  std::string prefix, code, assembly;  // assembly: may be empty
};
/// Returns the name of the first function that the library lacks; empty if it has all.
std::string find_functions(const libraries::Library& library, const RuntimeCompilerNames& names,
                           RuntimeCompiler& compiler);

/// A value of Compilation::result, and of create()'s.
inline constexpr int kCompilerOutOfMemory = 1;

/// The text that a compiler gets for a source.
struct ProgramText {
  std::string text, file;              // file: how its messages call it
  std::vector<std::string> headers{};  // texts
  std::vector<const char*> header_names{};
};

/// Compiles a text. One that does not compile is no error here: `result` and `log` say so. Throws Error(out_of_memory)
/// or Error(compile), which name the source, if the compiler makes no program of it.
Compilation compile(const RuntimeCompiler& compiler, const Source& source, const ProgramText& text,
                    const std::vector<std::string>& options, bool want_assembly);

}  // namespace heddle::jit
