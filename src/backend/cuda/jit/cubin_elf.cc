#include "backend/cuda/jit/cubin_elf.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "backend/jit/elf.h"

namespace heddle::cuda::jit {
namespace {

namespace elf = heddle::jit::elf;

constexpr std::uint32_t kNoBits = 8;  // a section without bytes in the file

// `.nv.info` is a list of attributes: format, number, then a length and bytes of that length, or two bytes of value.
constexpr std::uint8_t kFormatSized = 4;
constexpr std::uint8_t kFrameSize = 0x11, kRegisterCount = 0x2f;  // {symbol, value}

std::string_view name_at(std::span<const char> names, std::uint32_t offset) {
  if (offset >= names.size()) return {};
  const std::string_view rest(names.data() + offset, names.size() - offset);
  return rest.substr(0, rest.find('\0'));
}

void read_attributes(std::span<const char> info, Resources& resources) {
  std::uint64_t at = 0;
  while (const auto head = elf::read_at<std::uint32_t>(info, at)) {
    at += sizeof(*head);
    const auto format = static_cast<std::uint8_t>(*head), attribute = static_cast<std::uint8_t>(*head >> 8);
    const std::uint32_t size = *head >> 16;
    if (format != kFormatSized) continue;
    const auto value = size >= 8 ? elf::read_at<std::uint32_t>(info, at + 4) : std::nullopt;
    if (value && attribute == kRegisterCount) resources.registers = std::max(resources.registers, elf::as_int(*value));
    if (value && attribute == kFrameSize) resources.stack_bytes = std::max(resources.stack_bytes, elf::as_int(*value));
    at += size;
  }
}

}  // namespace

Resources resources_of(std::span<const char> cubin) {
  Resources resources;
  const auto file = elf::header_of(cubin);
  if (!file) return resources;
  const auto names_header = elf::section(cubin, *file, file->names_section);
  if (!names_header) return resources;
  const std::span<const char> names = elf::part(cubin, names_header->offset, names_header->size);
  for (std::uint32_t i = 0; i < file->section_count; ++i) {
    const auto header = elf::section(cubin, *file, i);
    if (!header) return {};
    const std::string_view name = name_at(names, header->name);
    if (name == ".nv.info") read_attributes(elf::part(cubin, header->offset, header->size), resources);
    if (name.starts_with(".nv.shared.") && !name.starts_with(".nv.shared.reserved") && header->type == kNoBits) {
      resources.static_shared_bytes = std::max(resources.static_shared_bytes, elf::as_int(header->size));
    }
  }
  // A kernel without shared memory has no such section.
  if (resources.registers >= 0 && resources.static_shared_bytes < 0) resources.static_shared_bytes = 0;
  resources.spill_bytes = resources.stack_bytes;
  return resources;
}

}  // namespace heddle::cuda::jit
