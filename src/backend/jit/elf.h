// Reads ELF64 files, as far as GPUs' machine code comes in them. Nothing is trusted: what does not lie in the file is
// not there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace heddle::jit::elf {

struct FileHeader {
  unsigned char identity[16];
  std::uint16_t type, machine;
  std::uint32_t version;
  std::uint64_t entry, program_headers, section_headers;
  std::uint32_t flags;
  std::uint16_t header_size, program_header_size, program_header_count;
  std::uint16_t section_header_size, section_count, names_section;
};
struct SectionHeader {
  std::uint32_t name, type;
  std::uint64_t flags, address, offset, size;
  std::uint32_t link, info;
  std::uint64_t alignment, entry_size;
};

template <class T>
std::optional<T> read_at(std::span<const char> bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// Empty if the bytes do not have all of it.
inline std::span<const char> part(std::span<const char> bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) return {};
  return bytes.subspan(offset, size);
}

/// Nothing for bytes that are no ELF64 file of this byte order.
inline std::optional<FileHeader> header_of(std::span<const char> file) {
  const auto header = read_at<FileHeader>(file, 0);
  if (!header || std::memcmp(header->identity, "\177ELF\2\1", 6) != 0) return std::nullopt;
  return header->section_header_size == sizeof(SectionHeader) ? header : std::nullopt;
}
inline std::optional<SectionHeader> section(std::span<const char> file, const FileHeader& header,
                                            std::uint32_t number) {
  return read_at<SectionHeader>(file, header.section_headers + number * sizeof(SectionHeader));
}

inline int as_int(std::uint64_t value) { return static_cast<int>(std::min<std::uint64_t>(value, INT32_MAX)); }

}  // namespace heddle::jit::elf
