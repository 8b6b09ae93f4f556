#include <span>

#include "files/byte_sink.h"
#include "heddle/files.h"

namespace heddle {

void save_text(const std::filesystem::path& path, std::string_view text) {
  files::ReplacingFile target(path);
  target.write(std::as_bytes(std::span(text)));
  target.commit();
}

}  // namespace heddle
