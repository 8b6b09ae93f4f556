// Text to machine code, in memory and on disk only once: what the compilers of all devices share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/jit/compiler.h"
#include "base/rejected.h"

namespace heddle::jit {

/// Thrown for a kernel that spills, say, if its source has an alternative.
using base::Rejected;

/// Since the process began: how often the compiler ran, how often build() answered from memory, from disk and from an
/// archive, and how often it threw Rejected.
struct Counts {
  std::int64_t compiled = 0, from_memory = 0, from_disk = 0, from_archive = 0, rejected = 0;
};

/// Builds kernels with one compiler. The library's own are never destroyed: threads may still build while the process
/// ends.
class Builder {
 public:
  /// Keeps so many bytes of machine code and logs in memory; kernels beyond are read from the disk cache again.
  static constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  explicit Builder(const Compiler& compiler, std::int64_t most_bytes = kMostBytes);
  ~Builder();

  /// The kernel of a source: from memory, else from an archive (which needs no compiler), else from the disk cache,
  /// else compiled. If several threads want one kernel, one compiles and the others wait; several processes may share
  /// the folder. Throws Error(compile) with the compiler's log when the source does not compile, Rejected as above
  /// (also on later calls, without compiling again), Error(unsupported) when the kernel is in no archive and the
  /// compiler is not found or too old, and as Archives::find(). A folder that is full, damaged or not writable is no
  /// error: the kernel is compiled, and cache_notes() says so. If HEDDLE_DUMP names a folder, each kernel that was
  /// compiled or read from the disk cache is left there for people to read; Error(io) when it cannot be.
  std::shared_ptr<const MachineCode> build(const Source& source);

  /// The kernel's name in the cache: a hash of its name, its text, whether it has an alternative, the headers that it
  /// includes, the options, the architecture and the compiler's version. Where there is no compiler, its name in
  /// archives.
  std::string key_of(const Source& source) const;

  /// Where the cache is, and what went wrong with it so far: lines for explain().
  std::string cache_notes();
  Counts counts() const;
  /// Forgets what is in memory (not on disk), and looks for the cache's folder again: for tests and cold measurements.
  void forget();

 private:
  struct State;
  const Compiler& compiler_;
  std::unique_ptr<State> state_;
};

}  // namespace heddle::jit
