// Looks for "sample" on the loader's path, which is fixed when a program starts, and then in the given folders: prints
// the file that was taken, or the sentence.
//
//   open_sample FOLDER...
#include <cstdio>

#include "backend/libraries/library.h"
#include "heddle/error.h"

int main(int count, char** arguments) {
  using namespace heddle;
  const libraries::LibrarySearch search{.what = "sample",
                                   .option = base::Option::nvrtc,
                                   .names = {"libsample.so.2", "libsample.so.1"},
                                   .folders = {arguments + 1, arguments + count},
                                   .old_names = {"libsample.so.0"}};
  const auto check = [](const libraries::Library& library) {
    int (*version)() = nullptr;
    return !library.find(version, "sample_version") ? "has no version" : version() < 1 ? "is version 0" : "";
  };
  try {
    std::fputs(libraries::open_library(search, check).path().c_str(), stdout);
  } catch (const Error& error) {
    std::fputs(error.what(), stdout);
  }
  return 0;
}
