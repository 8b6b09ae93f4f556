// A library whose functions are found once, or the reason why there are none.
#pragma once

#include <span>
#include <string>

#include "backend/libraries/library.h"
#include "heddle/error.h"

namespace heddle::libraries {

template <class Functions>
struct LoadedLibrary {
  Functions functions{};
  Library library;
  std::string missing;  // why there is none, a sentence; empty when there is one

  /// Throws Error(unsupported) with that sentence.
  const LoadedLibrary& here() const {
    if (!missing.empty()) throw Error(ErrorCode::unsupported, missing);
    return *this;
  }
};

/// The first of these symbols that the library lacks; null if it has all.
inline const char* lacking(const Library& library, std::span<const char* const> symbols) {
  for (const char* symbol : symbols) {
    if (library.symbol(symbol) == nullptr) return symbol;
  }
  return nullptr;
}

/// Opens a library and fills the functions; `fill(loaded)` may start the library, and says in `missing` if it does not.
template <class Functions, class Fill>
LoadedLibrary<Functions> load_library(const LibrarySearch& search, const LibraryCheck& check, const Fill& fill) {
  LoadedLibrary<Functions> loaded;
  try {
    loaded.library = open_library(search, check);
    fill(loaded);
  } catch (const Error& error) {
    loaded.missing = error.what();
  }
  return loaded;
}

}  // namespace heddle::libraries
