#include "backend/amd/simulator/code_object.h"

#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <unordered_map>

#include "backend/amd/simulator/assembly_line.h"
#include "backend/amd/simulator/decode.h"
#include "backend/amd/simulator/metadata.h"

namespace heddle::amd::simulator {
namespace {

std::string output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error(fmt::format("cannot run {}", command));
  std::string text;
  std::array<char, 65536> block;
  for (std::size_t got = 0; (got = std::fread(block.data(), 1, block.size(), pipe)) > 0;)
    text.append(block.data(), got);
  if (pclose(pipe) != 0) throw std::runtime_error(fmt::format("{} failed", command));
  return text;
}

std::string quoted(const std::string& path) {
  std::string result = "'";
  for (const char c : path) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

template <class T>
T value_at(std::span<const std::uint8_t> bytes, std::uint64_t offset) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset)
    throw std::runtime_error("the ELF file ends too early");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string string_at(std::span<const std::uint8_t> bytes, std::uint64_t offset) {
  std::string text;
  for (; offset < bytes.size() && bytes[offset] != 0; ++offset) text += static_cast<char>(bytes[offset]);
  return text;
}

struct Symbol {
  std::uint64_t address;
  std::uint64_t size;
};

/// The parts of an ELF file that the loader reads.
struct Elf {
  std::vector<Segment> segments;
  std::unordered_map<std::string, Symbol> symbols;
};

Elf read_elf(std::span<const std::uint8_t> bytes) {
  const auto header = value_at<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
    throw std::runtime_error("no 64-bit ELF file");
  if (header.e_machine != 224) throw std::runtime_error("the ELF file is not for AMD GPUs");
  Elf elf;
  for (int n = 0; n < header.e_phnum; ++n) {
    const auto program =
        value_at<Elf64_Phdr>(bytes, header.e_phoff + static_cast<std::uint64_t>(n) * sizeof(Elf64_Phdr));
    if (program.p_type != PT_LOAD) continue;
    if (program.p_offset > bytes.size() || program.p_filesz > bytes.size() - program.p_offset)
      throw std::runtime_error("the ELF file ends too early");
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(program.p_offset);
    elf.segments.push_back({program.p_vaddr,
                            program.p_memsz,
                            {first, first + static_cast<std::ptrdiff_t>(program.p_filesz)},
                            (program.p_flags & PF_W) != 0});
  }
  for (int n = 0; n < header.e_shnum; ++n) {
    const auto section =
        value_at<Elf64_Shdr>(bytes, header.e_shoff + static_cast<std::uint64_t>(n) * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_DYNSYM) continue;
    const auto strings = value_at<Elf64_Shdr>(bytes, header.e_shoff + section.sh_link * sizeof(Elf64_Shdr));
    for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = value_at<Elf64_Sym>(bytes, section.sh_offset + at);
      elf.symbols[string_at(bytes, strings.sh_offset + symbol.st_name)] = {symbol.st_value, symbol.st_size};
    }
  }
  return elf;
}

std::span<const std::uint8_t> loaded_bytes(const Elf& elf, std::uint64_t address, std::uint64_t size) {
  for (const Segment& segment : elf.segments) {
    if (address >= segment.address && address + size <= segment.address + segment.bytes.size()) {
      return {segment.bytes.data() + (address - segment.address), size};
    }
  }
  throw std::runtime_error(fmt::format("no segment holds {:#x}", address));
}

/// The kernel descriptor: 64 bytes, `name.kd`.
void read_descriptor(const Elf& elf, KernelInfo& kernel) {
  const auto descriptor = elf.symbols.find(kernel.name + ".kd");
  const auto function = elf.symbols.find(kernel.name);
  if (descriptor == elf.symbols.end() || function == elf.symbols.end())
    throw std::runtime_error(fmt::format("kernel {} has no descriptor", kernel.name));
  const auto bytes = loaded_bytes(elf, descriptor->second.address, 64);
  kernel.entry = descriptor->second.address + static_cast<std::uint64_t>(value_at<std::int64_t>(bytes, 16));
  kernel.code_bytes = function->second.size;
  kernel.rsrc1 = value_at<std::uint32_t>(bytes, 48);
  kernel.rsrc2 = value_at<std::uint32_t>(bytes, 52);
  kernel.properties = value_at<std::uint16_t>(bytes, 56);
  kernel.preload = value_at<std::uint16_t>(bytes, 58);
}

Chip chip_of(const std::string& disassembly_header) {
  // "amdhsa.target: amdgcn-amd-amdhsa--gfx942:sramecc+", or with quotes
  const std::size_t at = disassembly_header.find("--gfx");
  if (at == std::string::npos) throw std::runtime_error("the code object names no chip");
  std::string name = disassembly_header.substr(at + 2);
  name = name.substr(0, name.find_first_of(":'\"\n "));
  Chip chip{.name = name};
  if (name == "gfx90a" || name == "gfx942") {
    chip.generation = 9;
    chip.lanes = 64;
    chip.is_gfx90a = name == "gfx90a";
  } else if (name.starts_with("gfx11") || name.starts_with("gfx12")) {
    chip.generation = name.starts_with("gfx11") ? 11 : 12;
    chip.lanes = 32;
  } else {
    throw std::runtime_error(fmt::format("{} is not simulated", name));
  }
  return chip;
}

/// A file of its own for the time of a call.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::span<const std::uint8_t> bytes) {
    path_ = (std::filesystem::temp_directory_path() / "heddle-code-XXXXXX").string();
    const int descriptor = mkstemp(path_.data());
    if (descriptor < 0) throw std::runtime_error("no temporary file can be made");
    close(descriptor);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

CodeObject CodeObject::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(fmt::format("{} cannot be read", path));
  const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const Elf elf = read_elf(bytes);
  const std::string notes = output_of(fmt::format("{} --notes {}", HEDDLE_LLVM_READELF, quoted(path)));
  CodeObject object;
  object.chip_ = chip_of(notes);
  object.kernels_ = parse_metadata(notes);
  for (KernelInfo& kernel : object.kernels_) read_descriptor(elf, kernel);
  object.segments_ = elf.segments;
  const std::string text = output_of(fmt::format("{} -d --no-show-raw-insn {}", HEDDLE_LLVM_OBJDUMP, quoted(path)));
  object.program_ = decode(parse_disassembly(text), object.chip_);
  for (const KernelInfo& kernel : object.kernels_) {
    if (kernel.wave_lanes != object.chip_.lanes)
      throw std::runtime_error(fmt::format("{}: waves of {} lanes are not simulated on {}", kernel.name,
                                           kernel.wave_lanes, object.chip_.name));
  }
  return object;
}

CodeObject CodeObject::load(std::span<const std::uint8_t> bytes) {
  const TemporaryFile file(bytes);
  return load(file.path());
}

const KernelInfo& CodeObject::kernel(const std::string& name) const {
  const auto found =
      std::find_if(kernels_.begin(), kernels_.end(), [&](const KernelInfo& k) { return k.name == name; });
  if (found == kernels_.end()) throw std::runtime_error(fmt::format("the code object has no kernel {}", name));
  return *found;
}

}  // namespace heddle::amd::simulator
