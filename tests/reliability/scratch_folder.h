// A folder of a test, with the kernel cache and the tuning records in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "scoped_environment.h"

namespace heddle::test {

class ScratchFolder {
 public:
  ScratchFolder() : path_(made()), cache_("HEDDLE_CACHE_DIR", (path_ / "cache").c_str()) {}
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path cache() const { return path_ / "cache"; }

  /// The names in a folder, sorted; none where it is not there.
  static std::vector<std::string> listing(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  static std::filesystem::path made() {
    std::string name = (std::filesystem::temp_directory_path() / "heddle-reliability-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder can be made in the temporary one");
    return name;
  }

  std::filesystem::path path_;
  ScopedVariable cache_;
};

}  // namespace heddle::test
