// Text to cubin: NVRTC, in memory and on disk only once. Knows nothing of attention.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rejected.h"

namespace heddle::cuda::jit {

/// A header that `#include "name"` finds.
struct Header {
  std::string name;
  std::string_view text;  // lives as long as the program
};

/// One kernel's whole source. Equal sources are one kernel.
struct Source {
  std::string name;  // for people: "forward_sm90 bf16 d128 128x128"; also that of the dumped files
  std::string text;  // the file to compile
  std::vector<Header> headers{};
  std::string architecture{};          // "sm_90a"; must be set
  std::vector<std::string> options{};  // further options of NVRTC
};

struct Cubin {
  std::vector<char> bytes;
  std::string log;  // of the compiler
  int registers = 0, spill_bytes = 0, stack_bytes = 0, static_shared_bytes = 0;
  double compile_ms = 0;  // of the compilation that made it, whenever that was
  enum class From : std::uint8_t { compiler, memory, disk } from = From::compiler;
};

/// Of a kernel that spills, or whose tensor-core products the compiler serialised (C75xx).
using base::Rejected;

/// The kernel of a source: from memory, else from the disk cache, else compiled. Of several threads that want the same
/// one, one compiles and the others wait; several processes may share the folder. Throws Error(compile) with NVRTC's
/// log when it does not compile, Rejected as above (also on later calls, without compiling again), Error(unsupported)
/// when NVRTC is not found (listing where it was looked for) or too old. A folder that cannot be written, is full or
/// damaged is never an error: the kernel is compiled, and cache_notes() says so. Where HEDDLE_DUMP names a folder, what
/// was compiled or read from disk is left there for people to read; Error(io) when it cannot be.
std::shared_ptr<const Cubin> build(const Source& source);

/// The kernel's name in the cache: a hash of its name, its text, the headers that it includes, the options, the
/// architecture and the compiler's version. Throws as build() does where there is no compiler.
std::string key_of(const Source& source);

/// Empty when NVRTC was found and is new enough; else the reason, a sentence. Never throws.
std::string compiler_missing();
/// "13.0"
std::string compiler_version();
/// 13000, as drivers count.
int compiler_number();

/// Where the cache is, and what went wrong with it so far: lines for explain().
std::string cache_notes();

/// Since the process began: how often the compiler ran, how often build() answered from memory and from disk, and how
/// often it threw Rejected.
struct Counts {
  std::int64_t compiled = 0, from_memory = 0, from_disk = 0, rejected = 0;
};
Counts counts();
/// Forgets what is in memory (not on disk), and looks for the cache's folder again: for tests and cold measurements.
void forget();

}  // namespace heddle::cuda::jit
