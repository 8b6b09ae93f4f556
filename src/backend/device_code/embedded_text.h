// Files as text, made by cmake/embed_text.cmake.
#pragma once

namespace heddle::device_code {

struct EmbeddedText {
  const char* name;
  const char* const* pieces;  // to be joined; the last is null
};
/// The last has no name.
const EmbeddedText* embedded_texts();

}  // namespace heddle::device_code
