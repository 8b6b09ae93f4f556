// Destinations of the writers' bytes: a file that replaces the old one only when it is whole, or memory in the tests.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace heddle::files {

class ByteSink {
 public:
  ByteSink() = default;
  ByteSink(const ByteSink&) = delete;
  ByteSink& operator=(const ByteSink&) = delete;
  virtual ~ByteSink() = default;
  /// Appends. Throws io.
  virtual void write(std::span<const std::byte> bytes) = 0;
};

/// Writes to a temporary file in the folder of `path`; commit() brings it to the disk and renames it. Without a commit
/// the temporary file goes away and `path` stays as it was. On most file systems the temporary file has no name before
/// the commit, so that even a killed process leaves none. Character devices and pipes, which cannot be replaced, are
/// written directly. A symbolic link stays, its target is replaced or made. All functions throw io.
class ReplacingFile : public ByteSink {
 public:
  explicit ReplacingFile(const std::filesystem::path& path);
  ~ReplacingFile() override;
  void write(std::span<const std::byte> bytes) override;
  void commit();

 private:
  [[noreturn]] void fail(int error) const;
  /// Gives temporary_ a name that is free: make() makes it, or returns -1.
  template <class F>
  void name_by(F&& make);

  std::filesystem::path path_;       // as the caller named it
  std::filesystem::path target_;     // with links resolved
  bool replaces_ = false;            // by a temporary file
  std::filesystem::path temporary_;  // empty: none, without a name, or renamed
  int descriptor_ = -1;
};

class MemorySink : public ByteSink {
 public:
  void write(std::span<const std::byte> more) override { bytes.insert(bytes.end(), more.begin(), more.end()); }

  std::vector<std::byte> bytes;
};

}  // namespace heddle::files
