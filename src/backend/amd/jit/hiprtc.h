// libhiprtc, opened at run time. No header of HIP is included anywhere: the prototypes that we need are ours.
#pragma once

#include <string>
#include <vector>

#include "backend/jit/compiler.h"
#include "backend/jit/source.h"

namespace heddle::amd {

struct HiprtcInfo {
  int major = 0, minor = 0;
  std::string path;
  std::string identity;            // of this very build, as far as one can tell without running it: for keys
  std::vector<std::string> chips;  // that it compiles for: "gfx1100"; empty: it does not say
};

/// The compiler of this process, looked for once. If HIP has started by then, a compiler of its major version is
/// preferred. Throws Error(unsupported) with a sentence that lists the places, or what was found and lacks a function.
const HiprtcInfo& hiprtc();

/// Every option that hipRTC gets for a source: the only list of them.
std::vector<std::string> options_of(const jit::Source& source);

/// Runs it. A source that does not compile is no error here: `result` and `log` say so. Throws Error(unsupported) for a
/// chip that hipRTC does not list: given one, it may end the process.
jit::Compilation compile(const jit::Source& source);

}  // namespace heddle::amd
