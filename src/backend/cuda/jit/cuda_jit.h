// Text to cubin: NVRTC, in memory and on disk only once. Knows nothing of attention.
#pragma once

#include <memory>
#include <string>

#include "backend/jit/builder.h"

namespace heddle::cuda::jit {

using heddle::jit::Counts;
using heddle::jit::Header;
using heddle::jit::Source;
using Cubin = heddle::jit::MachineCode;

/// Thrown for a kernel that spills, or whose tensor-core products the compiler serialised (C75xx), if the source has an
/// alternative; in any case for one that does not fit its registers (C76xx).
using heddle::jit::Rejected;

/// jit::Builder::build() with NVRTC.
std::shared_ptr<const Cubin> build(const Source& source);

/// jit::Builder::key_of().
std::string key_of(const Source& source);

/// Empty when NVRTC was found and is new enough; else the reason, a sentence. Never throws.
std::string compiler_missing();
/// "13.0"
std::string compiler_version();
/// The NVRTC that made a kernel, as drivers count: 13000. 0: not known.
int compiler_number(const Cubin& cubin);

/// Where the cache is, and what went wrong with it so far: lines for explain().
std::string cache_notes();

/// Counts of this process.
Counts counts();
/// Forgets what is in memory (not on disk), and looks for the cache's folder again: for tests and cold measurements.
void forget();

}  // namespace heddle::cuda::jit
