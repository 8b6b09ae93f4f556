// An archive of kernels on disk, open for reading.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "backend/jit/kernel_archive.h"

namespace heddle::jit {

/// The version that archives of this build have, and that it reads.
std::string_view archive_version();

/// Its head is in memory; records are read when they are asked for. The file stays open: one that replaces it does not
/// matter to this object. Several processes may read one file.
class ArchiveFile {
 public:
  /// Throws Error(io) for a file that cannot be read, is no archive or is damaged, and Error(invalid_argument) for one
  /// that another version of heddle wrote, unless `any_version`.
  explicit ArchiveFile(const std::filesystem::path& path, bool any_version = false);
  ~ArchiveFile();
  ArchiveFile(const ArchiveFile&) = delete;
  ArchiveFile& operator=(const ArchiveFile&) = delete;

  const std::string& path() const { return path_; }
  const ArchiveHead& head() const { return head_; }
  /// Null: there is none.
  const ArchiveHead::Entry* find(std::string_view key) const;
  /// Throws Error(io) if the record cannot be read or is damaged.
  Record load(const ArchiveHead::Entry& entry) const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;
  std::vector<char> read(std::uint64_t offset, std::uint64_t size) const;

  std::string path_;
  int descriptor_;
  ArchiveHead head_;
};

}  // namespace heddle::jit
