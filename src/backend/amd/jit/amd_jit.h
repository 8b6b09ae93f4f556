// Text to code object: hipRTC, in memory and on disk only once. Knows nothing of attention.
#pragma once

#include <string>

#include "backend/jit/builder.h"

namespace heddle::amd {

/// The builder of this process over hipRTC. It rejects kernels that spill vector registers or need scratch memory, if
/// they have an alternative; in any case those whose stack has no fixed size.
jit::Builder& builder();

/// Empty when hipRTC was found and has its functions; else the reason, a sentence. Never throws.
std::string compiler_missing();
/// "6.0"
std::string compiler_version();

}  // namespace heddle::amd
