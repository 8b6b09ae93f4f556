#include "fake_cubin.h"

#include <elf.h>

#include <cctype>
#include <cstring>

namespace heddle::cuda {

std::vector<std::string> kernels_defined_in(std::string_view text) {
  constexpr std::string_view kWord = "__global__ ";
  std::vector<std::string> names;
  for (std::size_t at = text.find(kWord); at != std::string_view::npos; at = text.find(kWord, at)) {
    at += kWord.size();
    // The name is the first word before a parenthesis that is no attribute. Attributes begin with "__".
    std::string word;
    for (int depth = 0; at < text.size(); ++at) {
      const char c = text[at];
      if (c == '(' && depth++ == 0 && !word.starts_with("__")) break;
      if (c == ')') --depth;
      if (depth > 0) continue;
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
        word += c;
      } else {
        word.clear();
      }
    }
    names.push_back(word);
  }
  return names;
}

std::string fake_cubin(const std::vector<std::string>& kernels) {
  constexpr int kCuda = 190;  // e_machine
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> sections(1);  // the first is empty by definition
  const auto add = [&](const std::string& name, Elf64_Word type) {
    Elf64_Shdr section{};
    section.sh_name = static_cast<Elf64_Word>(names.size());
    section.sh_type = type;
    sections.push_back(section);
    names += name + '\0';
  };
  for (const std::string& kernel : kernels) add(".text." + kernel, SHT_PROGBITS);
  add(".shstrtab", SHT_STRTAB);
  sections.back().sh_offset = sizeof(Elf64_Ehdr);
  sections.back().sh_size = names.size();

  Elf64_Ehdr file{};
  std::memcpy(file.e_ident, ELFMAG, SELFMAG);
  file.e_ident[EI_CLASS] = ELFCLASS64;
  file.e_machine = kCuda;
  file.e_shoff = sizeof file + names.size();
  file.e_shnum = static_cast<Elf64_Half>(sections.size());
  file.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  std::string bytes(reinterpret_cast<const char*>(&file), sizeof file);
  bytes += names;
  bytes.append(reinterpret_cast<const char*>(sections.data()), sections.size() * sizeof(Elf64_Shdr));
  return bytes;
}

}  // namespace heddle::cuda
