// An archive of kernels as bytes: kernels that one machine compiled, for others that then need no compiler. At its head
// stands what every entry is; behind it their records, as kernel_record.h has them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/jit/kernel_record.h"

namespace heddle::jit {

/// A kernel for an archive.
struct ArchivedKernel {
  std::string key;                           // source_key()
  std::string name, architecture, compiler;  // for people: "forward_sm90 bf16 ...", "sm_90a", "NVRTC 13.0"
  Record record;                             // of a rejected kernel too: a reader then tries the next one
};

/// The head of an archive.
struct ArchiveHead {
  struct Entry {
    std::string key, name, architecture, compiler;
    std::uint64_t offset, size;  // of the encoded record, in the file
  };
  std::string version;         // of the heddle that wrote it
  std::vector<Entry> entries;  // in the order of their keys, no two of one key
};

/// Bytes from the file's start that head_bytes() needs.
inline constexpr std::size_t kArchiveStart = 80;

/// The whole file. Kernels of one key count once. Throws Error(invalid_argument) for a version of more than 32 letters.
std::vector<char> encode_archive(std::string_view version, std::vector<ArchivedKernel> kernels);

/// How long the head is, of a file that starts with `start` and is `file_size` bytes long. Nothing unless that can be
/// an archive; `why` then says what is wrong: "is no archive of kernels". Safe on any bytes.
std::optional<std::size_t> head_bytes(std::span<const char> start, std::uint64_t file_size, std::string& why);

/// The head, from its bytes. Nothing unless encode_archive() made them, to the last bit. Safe on any bytes.
std::optional<ArchiveHead> decode_head(std::span<const char> head, std::uint64_t file_size, std::string& why);

}  // namespace heddle::jit
