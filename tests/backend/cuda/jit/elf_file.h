// ELF files made by hand: as much of a cubin as is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::cuda::jit {

inline void add(std::string& bytes, std::uint64_t value, std::size_t size) {
  bytes.append(reinterpret_cast<const char*>(&value), size);
}

/// One of `.nv.info`: 0x2f is the count of registers, 0x11 the stack frame.
inline std::string attribute(std::uint8_t number, std::uint32_t symbol, std::uint32_t value) {
  std::string bytes;
  add(bytes, 4, 1);
  add(bytes, number, 1);
  add(bytes, 8, 2);
  add(bytes, symbol, 4);
  add(bytes, value, 4);
  return bytes;
}

struct Section {
  std::string name, bytes;
  std::uint64_t size_without_bytes = 0;  // of a section that the file holds no bytes of
};

inline std::vector<char> elf(std::vector<Section> sections) {
  constexpr std::uint64_t kHeader = 64;
  sections.insert(sections.begin(), Section{});
  std::string names(1, '\0'), bodies, headers;
  std::vector<std::uint64_t> name_offsets;
  sections.push_back({".shstrtab", ""});
  for (const Section& section : sections) {
    name_offsets.push_back(names.size());
    names += section.name + '\0';
  }
  sections.back().bytes = names;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const Section& section = sections[i];
    const bool bare = section.size_without_bytes > 0;
    add(headers, name_offsets[i], 4);
    add(headers, bare ? 8 : 1, 4);
    add(headers, 0, 8);
    add(headers, 0, 8);
    add(headers, kHeader + bodies.size(), 8);
    add(headers, bare ? section.size_without_bytes : section.bytes.size(), 8);
    headers.append(24, '\0');
    bodies += section.bytes;
  }
  std::string file = "\177ELF\2\1";
  file.resize(40);
  add(file, kHeader + bodies.size(), 8);
  file.resize(58);
  add(file, 64, 2);
  add(file, sections.size(), 2);
  add(file, sections.size() - 1, 2);
  file += bodies + headers;
  return {file.begin(), file.end()};
}

}  // namespace heddle::cuda::jit
