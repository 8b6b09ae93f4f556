// A kernel's name in the cache.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "backend/jit/source.h"

namespace heddle::jit {

/// 32 hexadecimal digits over name, text, has_alternative, bearable_spill_bytes, headers in use, `options` (all that
/// the compiler gets) and `compiler`.
std::string key_of(const Source& source, std::span<const std::string> options, std::string_view compiler);

/// A kernel's name in archives, and in memory: as above, over everything but the compiler, which need not be there.
std::string source_key(const Source& source, std::span<const std::string> options);

}  // namespace heddle::jit
