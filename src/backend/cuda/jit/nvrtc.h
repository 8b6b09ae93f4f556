// libnvrtc, opened at run time. No CUDA header is included anywhere: the prototypes that we need are ours.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "backend/jit/compiler.h"

namespace heddle::cuda::jit {

using heddle::jit::Compilation;
inline constexpr int kBuiltinsMissing = 7;  // a value of Compilation::result: nvrtcResult

struct Compiler {
  int major = 0, minor = 0;
  std::string path;
  std::string identity;  // of this very build, as far as one can tell without running it: for keys

  std::string version() const;
};

/// File names of NVRTC, the best first. `first`: those whose kernels a driver of that version loads, being of its major
/// version or of an older one; `second`: the others. 0: no driver is known, and the newest is the best.
struct LibraryNames {
  std::vector<std::string> first, second;
};
LibraryNames library_names(int driver_version);

/// The compiler of this process, looked for once. If the driver has started by then, a compiler that suits it is
/// preferred. Throws Error(unsupported) with a sentence that lists the places, or what was found and is too old.
const Compiler& compiler();

/// Runs it. A source that does not compile is no error here: `result` and `log` say so.
Compilation compile(const Source& source, bool want_ptx);

}  // namespace heddle::cuda::jit
