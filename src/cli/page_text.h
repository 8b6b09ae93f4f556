// The pages that the program writes, as text, made by cmake/embed_text.cmake.
#pragma once

namespace heddle::cli {

struct PageText {
  const char* name;
  const char* const* pieces;  // to be joined; the last is null
};
/// The last has no name.
const PageText* page_texts();

}  // namespace heddle::cli
