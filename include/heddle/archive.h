// Archives of kernels: GPU kernels that one machine compiled, in a file, for processes that then need no compiler for
// them. `heddle aot` writes one; docs/guide/archives.md shows how. A file holds machine code: use one only if you would
// load a library from the same source.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// From now on this process also takes kernels from this archive, after those of HEDDLE_ARCHIVE and of earlier calls. A
/// kernel in an archive is neither looked up in the disk cache nor compiled; a kernel in none is, as without archives.
/// The file stays open; a file that was used before under this path is opened again. Throws Error(io) if it cannot be
/// read, is no archive or is damaged, and Error(invalid_argument) if another version of heddle wrote it.
void use_archive(const std::string& path);

/// The kernels of an archive.
struct ArchiveContents {
  struct Kernel {
    std::string name;          // "forward_sm90 bf16 d128 128x128"
    std::string architecture;  // "sm_90a"
    std::string compiler;      // "NVRTC 13.0"
    bool rejected = false;     // the compiler did not make it well, so that plans take the next one
    std::int64_t bytes = 0;    // in the file
  };
  std::string version;  // of the heddle that wrote it; any is read
  std::vector<Kernel> kernels;
};
/// Reads every kernel. Throws Error(io) as use_archive() does.
ArchiveContents read_archive(const std::string& path);

struct ArchiveOptions {
  /// True: calls that are wrong, or that a GPU does not support, are skipped, and the result lists them. False: they
  /// are an error.
  bool skip_refused = false;
  int threads = 0;                         // that compile; 0: all cores
  std::function<void(double)> progress{};  // the fraction done, from one thread at a time
};
struct ArchiveReport {
  std::int64_t calls = 0;               // that differ
  std::int64_t kernels = 0, bytes = 0;  // in the archive; kernels: rejected ones too
  std::int64_t rejected = 0;
  std::vector<std::string> refused{};  // sentences: "line 3 on a100: ..."
};
/// Compiles every kernel that calls would run on GPUs, and writes them into an archive. No GPU is needed. The file
/// appears, or replaces the old one, when it is whole.
///
/// calls: a JSON object a line, as docs/guide/archives.md has them: the file that HEDDLE_LOG names is such a text.
/// Empty lines, lines that begin with #, and events without a call are left out.
/// gpus: names ("h100"; "h100:114" with so many multiprocessors) or architectures ("sm_80", "sm_90", "gfx1100": all
/// known GPUs of it). Which kernel a plan takes depends on the number of multiprocessors.
///
/// Plans are those of tuning off: a process that follows measurements may take other kernels. Throws
/// Error(invalid_argument), with the line, for a malformed call; Error(unsupported) if there is no compiler; the error
/// of planning for a call that a GPU refuses; and Error(io).
ArchiveReport write_archive(const std::string& path, std::string_view calls, std::span<const std::string> gpus,
                            const ArchiveOptions& options = {});

}  // namespace heddle
