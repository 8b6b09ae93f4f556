// The builder's interface to a compiler of kernels: NVRTC, hipRTC.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "backend/jit/kernel_record.h"
#include "backend/jit/source.h"

namespace heddle::jit {

/// The compiler's output for one source.
struct Compilation {
  int result = 0;           // the compiler's own number; 0: success
  std::string result_text;  // "NVRTC_ERROR_COMPILATION"
  std::string log;
  std::vector<char> code;
  std::string assembly;  // where it was asked for and the compiler gives it
  double milliseconds = 0;
};

/// How the files of a dump end.
struct DumpSuffixes {
  const char* source;       // ".cu"
  const char* assembly;     // ".ptx"
  const char* code;         // ".cubin"
  const char* disassembly;  // ".sass"
};

/// One object a compiler, which lives as long as the process. All may throw Error(unsupported) where there is none.
class Compiler {
 public:
  virtual ~Compiler() = default;

  virtual const char* name() const = 0;  // "NVRTC"
  virtual std::string version() const = 0;
  virtual std::string path() const = 0;
  /// Identifies this very build for keys, as far as one can tell without running it.
  virtual std::string identity() const = 0;
  /// Every option that it gets for a source.
  virtual std::vector<std::string> options_of(const Source& source) const = 0;
  /// Runs it. A source that does not compile is no error here: `result` and `log` say so.
  virtual Compilation compile(const Source& source, bool want_assembly) const = 0;
  /// The record to keep of a compilation. Throws when there is no kernel to judge.
  virtual Record judge(const Source& source, const Compilation& compilation) const = 0;

  virtual DumpSuffixes dump_suffixes() const = 0;
  /// Writes a listing of machine code into a file. Does nothing if no program makes one.
  virtual void disassemble(const std::filesystem::path& code, const std::filesystem::path& to) const = 0;
};

}  // namespace heddle::jit
