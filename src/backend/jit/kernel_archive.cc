#include "backend/jit/kernel_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/hash.h"
#include "heddle/error.h"

namespace heddle::jit {
namespace {

constexpr std::array<char, 8> kMagic{'H', 'E', 'D', 'D', 'L', 'E', 'A', '\n'};
constexpr std::uint32_t kFormat = 1;
constexpr std::uint64_t kLargestHead = std::uint64_t{1} << 28;

/// In the byte order of the machine, as the records. No padding.
struct FileStart {
  std::array<char, 8> magic;
  std::uint32_t format, start_size;
  std::uint64_t checksum;  // of the head behind it
  std::uint64_t file_size, head_size, entries;
  std::array<char, 32> version;  // filled up with zeros
};
static_assert(sizeof(FileStart) == kArchiveStart);
constexpr std::size_t kChecked = offsetof(FileStart, checksum) + sizeof(FileStart::checksum);

/// One entry. All entries follow the start, and behind them stand the texts of all.
struct EntryStart {
  std::array<char, 32> key;
  std::uint64_t offset, size;
  std::uint32_t name_size, architecture_size, compiler_size, unused;
};
static_assert(sizeof(EntryStart) == 64);

std::uint64_t checksum_of(std::span<const char> head) {
  return base::hash_bytes(head.data() + kChecked, head.size() - kChecked, kFormat);
}

template <class T>
void append(std::vector<char>& bytes, const T& value) {
  const char* const first = reinterpret_cast<const char*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof value);
}

std::string text_of(std::span<const char> bytes) { return {bytes.data(), bytes.size()}; }

template <class T>
T read(std::span<const char> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::vector<char> encode_archive(std::string_view version, std::vector<ArchivedKernel> kernels) {
  FileStart start{.magic = kMagic,
                  .format = kFormat,
                  .start_size = sizeof(FileStart),
                  .checksum = 0,
                  .file_size = 0,
                  .head_size = 0,
                  .entries = 0,
                  .version = {}};
  if (version.size() > start.version.size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the version '{}' has {} letters; up to {} are accepted",
                                                         version, version.size(), start.version.size()));
  }
  version.copy(start.version.data(), version.size());
  std::ranges::stable_sort(kernels, {}, &ArchivedKernel::key);
  const auto same = [](const ArchivedKernel& a, const ArchivedKernel& b) { return a.key == b.key; };
  kernels.erase(std::unique(kernels.begin(), kernels.end(), same), kernels.end());
  start.entries = kernels.size();

  std::string texts;
  std::vector<char> records;
  std::vector<EntryStart> entries;
  for (const ArchivedKernel& kernel : kernels) {
    const std::vector<char> record = encode(kernel.key, kernel.record);
    EntryStart entry{.key = {},
                     .offset = records.size(),
                     .size = record.size(),
                     .name_size = static_cast<std::uint32_t>(kernel.name.size()),
                     .architecture_size = static_cast<std::uint32_t>(kernel.architecture.size()),
                     .compiler_size = static_cast<std::uint32_t>(kernel.compiler.size()),
                     .unused = 0};
    kernel.key.copy(entry.key.data(), entry.key.size());
    entries.push_back(entry);
    texts += kernel.name + kernel.architecture + kernel.compiler;
    records.insert(records.end(), record.begin(), record.end());
  }
  start.head_size = sizeof(FileStart) + entries.size() * sizeof(EntryStart) + texts.size();
  start.file_size = start.head_size + records.size();

  std::vector<char> bytes;
  bytes.reserve(start.file_size);
  append(bytes, start);
  for (EntryStart entry : entries) {
    entry.offset += start.head_size;
    append(bytes, entry);
  }
  bytes.insert(bytes.end(), texts.begin(), texts.end());
  start.checksum = checksum_of(bytes);
  std::memcpy(bytes.data(), &start, sizeof start);
  bytes.insert(bytes.end(), records.begin(), records.end());
  return bytes;
}

std::optional<std::size_t> head_bytes(std::span<const char> start, std::uint64_t file_size, std::string& why) {
  why.clear();
  if (start.size() < sizeof(FileStart)) {
    why = fmt::format("is {} bytes long, less than the start of an archive", file_size);
    return std::nullopt;
  }
  const auto read_start = read<FileStart>(start, 0);
  if (read_start.magic != kMagic) {
    why = "is no archive of kernels";
  } else if (read_start.format != kFormat || read_start.start_size != sizeof(FileStart)) {
    why = fmt::format("is an archive of format {}; this heddle reads format {}", read_start.format, kFormat);
  } else if (read_start.file_size > file_size) {
    why = fmt::format("is {} bytes short", read_start.file_size - file_size);
  } else if (read_start.file_size < file_size) {
    why = fmt::format("is {} bytes too long", file_size - read_start.file_size);
  } else if (read_start.head_size > file_size || read_start.head_size > kLargestHead ||
             read_start.head_size < sizeof(FileStart)) {
    why = fmt::format("says that its head has {} bytes", read_start.head_size);
  }
  if (!why.empty()) return std::nullopt;
  return read_start.head_size;
}

std::optional<ArchiveHead> decode_head(std::span<const char> head, std::uint64_t file_size, std::string& why) {
  const auto size = head_bytes(head, file_size, why);
  if (!size) return std::nullopt;
  if (*size != head.size()) {
    why = "is cut short";
    return std::nullopt;
  }
  const auto start = read<FileStart>(head, 0);
  if (start.checksum != checksum_of(head)) {
    why = "is damaged: its head does not match its checksum";
    return std::nullopt;
  }
  // A head with a right checksum may still be malicious.
  why = "is damaged: its entries do not fit it";
  const std::size_t rest = head.size() - sizeof(FileStart);
  if (start.entries > rest / sizeof(EntryStart)) return std::nullopt;
  std::span<const char> texts = head.subspan(sizeof(FileStart) + start.entries * sizeof(EntryStart));
  const auto take = [&](std::uint32_t length) {
    const std::span<const char> text = texts.first(length);
    texts = texts.subspan(length);
    return text_of(text);
  };
  ArchiveHead decoded;
  decoded.version = text_of(start.version);
  decoded.version.resize(std::min(decoded.version.find('\0'), decoded.version.size()));
  std::uint64_t next = head.size();
  for (std::uint64_t i = 0; i < start.entries; ++i) {
    const auto entry = read<EntryStart>(head, sizeof(FileStart) + i * sizeof(EntryStart));
    const std::uint64_t letters = std::uint64_t{entry.name_size} + entry.architecture_size + entry.compiler_size;
    if (entry.unused != 0 || letters > texts.size() || entry.offset != next || entry.size > file_size - next)
      return std::nullopt;
    next += entry.size;
    std::string name = take(entry.name_size), architecture = take(entry.architecture_size);
    decoded.entries.push_back({.key = text_of(entry.key),
                               .name = std::move(name),
                               .architecture = std::move(architecture),
                               .compiler = take(entry.compiler_size),
                               .offset = entry.offset,
                               .size = entry.size});
    if (i > 0 && decoded.entries[i - 1].key >= decoded.entries[i].key) return std::nullopt;
  }
  if (next != file_size || !texts.empty()) return std::nullopt;
  why.clear();
  return decoded;
}

}  // namespace heddle::jit
