// The check that every path of a caller passes.
#pragma once

#include <filesystem>

namespace heddle::base {

/// Throws Error(invalid_argument) for a path with a byte 0: the system would take it for a shorter one, another file's.
void refuse_cut_path(const std::filesystem::path& path);

}  // namespace heddle::base
