#include "base/file_path.h"

#include <string>

#include "heddle/error.h"

namespace heddle::base {

void refuse_cut_path(const std::filesystem::path& path) {
  const std::string& bytes = path.native();
  const std::size_t cut = bytes.find('\0');
  if (cut == std::string::npos) return;
  throw Error(ErrorCode::invalid_argument,
              "path has a byte 0 behind '" + bytes.substr(0, cut) + "'; a path without one is accepted");
}

}  // namespace heddle::base
