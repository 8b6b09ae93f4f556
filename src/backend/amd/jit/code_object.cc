#include "backend/amd/jit/code_object.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "backend/amd/jit/message_pack.h"
#include "backend/jit/elf.h"

namespace heddle::amd {
namespace {

namespace elf = jit::elf;

struct NoteHeader {
  std::uint32_t name_size, content_size, type;
};
constexpr std::uint32_t kNotes = 7;      // SHT_NOTE
constexpr std::uint32_t kMetadata = 32;  // NT_AMDGPU_METADATA
constexpr std::string_view kOwner{"AMDGPU\0", 7};

constexpr std::uint64_t padded(std::uint32_t size) { return (std::uint64_t{size} + 3) / 4 * 4; }

/// The metadata among a section's notes; empty when it is not there.
std::span<const char> metadata_in(std::span<const char> notes) {
  for (std::uint64_t at = 0; const auto note = elf::read_at<NoteHeader>(notes, at);) {
    const std::uint64_t name = at + sizeof(NoteHeader), content = name + padded(note->name_size);
    const std::span<const char> owner = elf::part(notes, name, note->name_size);
    if (note->type == kMetadata && std::string_view(owner.data(), owner.size()) == kOwner) {
      return elf::part(notes, content, note->content_size);
    }
    at = content + padded(note->content_size);
  }
  return {};
}

std::span<const char> metadata_of(std::span<const char> code) {
  const auto file = elf::header_of(code);
  if (!file) return {};
  for (std::uint32_t i = 0; i < file->section_count; ++i) {
    const auto section = elf::section(code, *file, i);
    if (!section) return {};
    if (section->type != kNotes) continue;
    const std::span<const char> found = metadata_in(elf::part(code, section->offset, section->size));
    if (!found.empty()) return found;
  }
  return {};
}

/// One kernel's map.
void read_kernel(MessagePackReader& reader, CodeObjectFacts& facts) {
  const auto pairs = reader.map();
  if (!pairs) return reader.skip();
  int vector = 0, accumulation = 0;
  for (std::size_t i = 0; i < *pairs && !reader.failed(); ++i) {
    const auto key = reader.text();
    if (!key) {
      reader.skip();
      reader.skip();
      continue;
    }
    const auto value = reader.number();
    if (!value) {
      reader.skip();
      continue;
    }
    const int number = elf::as_int(*value);
    const auto raise = [number](int& most) { most = std::max(most, number); };
    if (*key == ".vgpr_count") vector = number;
    if (*key == ".agpr_count") accumulation = number;
    if (*key == ".vgpr_spill_count") raise(facts.spilled_vector);
    if (*key == ".sgpr_spill_count") raise(facts.spilled_scalar);
    if (*key == ".private_segment_fixed_size") raise(facts.scratch_bytes);
    if (*key == ".group_segment_fixed_size") raise(facts.shared_bytes);
    if (*key == ".uses_dynamic_stack" && number != 0) facts.dynamic_stack = true;
  }
  // Where both are counted, the first number holds both.
  facts.vector_registers = std::max({facts.vector_registers, vector, accumulation});
  ++facts.kernels;
}

}  // namespace

std::optional<CodeObjectFacts> facts_of(std::span<const char> code) {
  const std::span<const char> metadata = metadata_of(code);
  if (metadata.empty()) return std::nullopt;
  MessagePackReader reader(metadata);
  CodeObjectFacts facts;
  const auto pairs = reader.map();
  for (std::size_t i = 0; pairs && i < *pairs && !reader.failed(); ++i) {
    const auto key = reader.text();
    if (!key || *key != "amdhsa.kernels") {
      if (!key) reader.skip();
      reader.skip();
      continue;
    }
    const auto kernels = reader.list();
    for (std::size_t k = 0; kernels && k < *kernels && !reader.failed(); ++k) read_kernel(reader, facts);
    if (!kernels) reader.skip();
  }
  return reader.failed() || facts.kernels == 0 ? std::nullopt : std::optional(facts);
}

}  // namespace heddle::amd
