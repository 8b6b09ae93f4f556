// The archives of kernels that this process uses, for the builders of all compilers.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/jit/archive_file.h"
#include "backend/jit/source.h"

namespace heddle::jit {

/// First those that HEDDLE_ARCHIVE names, then those of use(), in the order of the calls. Is never destroyed.
class Archives {
 public:
  static Archives& of_process();

  /// Throws as ArchiveFile. An archive that is in use already is opened anew.
  void use(const std::filesystem::path& path);
  /// The record of a kernel in the first archive that has it. Throws as ArchiveFile if one that HEDDLE_ARCHIVE names
  /// cannot be used, or if the record is damaged.
  std::optional<Record> find(const std::string& key);
  /// A sentence on a kernel that none of them has, which says what to do; empty where no archive is in use.
  std::string lack_of(const Source& source);
  /// A line for each of them, for explain().
  std::string notes();
  /// Closes all, and reads HEDDLE_ARCHIVE again: for tests.
  void forget();

 private:
  using Files = std::vector<std::shared_ptr<const ArchiveFile>>;
  Files files();

  std::mutex mutex_;
  bool environment_was_read_ = false;
  Files files_;
};

}  // namespace heddle::jit
