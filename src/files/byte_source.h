// Where the readers get their bytes: a file, or memory in the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "heddle/error.h"

namespace heddle::files {

/// Bytes of a known size at any position.
class ByteSource {
 public:
  ByteSource(std::string name, std::uint64_t size) : name_(std::move(name)), size_(size) {}
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  std::uint64_t size() const { return size_; }
  /// Fills `to` with the bytes from `offset` on, which lie inside size(). Throws io.
  virtual void read(std::uint64_t offset, std::span<std::byte> to) const = 0;

  /// "cannot read NAME: WHAT"
  Error error(const std::string& what, ErrorCode code = ErrorCode::io) const {
    return {code, "cannot read " + name_ + ": " + what};
  }

 private:
  std::string name_;
  std::uint64_t size_;
};

/// A regular file. Opening throws io.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path);
  ~FileSource() override;
  void read(std::uint64_t offset, std::span<std::byte> to) const override;

 private:
  struct Opened {
    int descriptor;
    std::uint64_t size;
  };
  static Opened open(const std::filesystem::path& path);
  FileSource(const std::filesystem::path& path, Opened opened);

  int descriptor_;
};

/// Memory of the caller.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : ByteSource("memory", bytes.size()), bytes_(bytes) {}
  void read(std::uint64_t offset, std::span<std::byte> to) const override;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace heddle::files
