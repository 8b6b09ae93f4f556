#include "backend/cuda/jit/cubin_elf.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace heddle::cuda::jit {
namespace {

// The parts of ELF64 that are read here.
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
constexpr std::uint32_t kNoBits = 8;  // a section without bytes in the file

// `.nv.info` is a list of attributes: format, number, then a length and bytes of that length, or two bytes of value.
constexpr std::uint8_t kFormatSized = 4;
constexpr std::uint8_t kFrameSize = 0x11, kRegisterCount = 0x2f;  // {symbol, value}

template <class T>
std::optional<T> read_at(std::span<const char> bytes, std::uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::span<const char> part(std::span<const char> bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || bytes.size() - offset < size) return {};
  return bytes.subspan(offset, size);
}

std::string_view name_at(std::span<const char> names, std::uint32_t offset) {
  if (offset >= names.size()) return {};
  const std::string_view rest(names.data() + offset, names.size() - offset);
  return rest.substr(0, rest.find('\0'));
}

int as_int(std::uint64_t value) { return static_cast<int>(std::min<std::uint64_t>(value, INT32_MAX)); }

void read_attributes(std::span<const char> info, Resources& resources) {
  std::uint64_t at = 0;
  while (const auto head = read_at<std::uint32_t>(info, at)) {
    at += sizeof(*head);
    const auto format = static_cast<std::uint8_t>(*head), attribute = static_cast<std::uint8_t>(*head >> 8);
    const std::uint32_t size = *head >> 16;
    if (format != kFormatSized) continue;
    const auto value = size >= 8 ? read_at<std::uint32_t>(info, at + 4) : std::nullopt;
    if (value && attribute == kRegisterCount) resources.registers = std::max(resources.registers, as_int(*value));
    if (value && attribute == kFrameSize) resources.stack_bytes = std::max(resources.stack_bytes, as_int(*value));
    at += size;
  }
}

}  // namespace

Resources resources_of(std::span<const char> cubin) {
  Resources resources;
  const auto file = read_at<FileHeader>(cubin, 0);
  if (!file || std::memcmp(file->identity, "\177ELF\2\1", 6) != 0) return resources;
  if (file->section_header_size != sizeof(SectionHeader)) return resources;
  const auto section = [&](std::uint32_t i) {
    return read_at<SectionHeader>(cubin, file->section_headers + i * sizeof(SectionHeader));
  };
  const auto names_header = section(file->names_section);
  if (!names_header) return resources;
  const std::span<const char> names = part(cubin, names_header->offset, names_header->size);
  for (std::uint32_t i = 0; i < file->section_count; ++i) {
    const auto header = section(i);
    if (!header) return {};
    const std::string_view name = name_at(names, header->name);
    if (name == ".nv.info") read_attributes(part(cubin, header->offset, header->size), resources);
    if (name.starts_with(".nv.shared.") && !name.starts_with(".nv.shared.reserved") && header->type == kNoBits) {
      resources.static_shared_bytes = std::max(resources.static_shared_bytes, as_int(header->size));
    }
  }
  // A kernel without shared memory has no such section.
  if (resources.registers >= 0 && resources.static_shared_bytes < 0) resources.static_shared_bytes = 0;
  resources.spill_bytes = resources.stack_bytes;
  return resources;
}

}  // namespace heddle::cuda::jit
