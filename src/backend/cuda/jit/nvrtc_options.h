// The options that a kernel is compiled with, from which its name in the cache is made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"

namespace heddle::cuda::jit {

/// Every option that NVRTC gets for a source: the only list of them.
std::vector<std::string> options_of(const Source& source);

/// 32 hexadecimal digits over name, text, has_alternative, bearable_spill_bytes, headers in use, options and
/// `compiler`.
std::string key_of(const Source& source, std::string_view compiler);

}  // namespace heddle::cuda::jit
