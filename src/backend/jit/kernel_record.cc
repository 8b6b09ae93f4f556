#include "backend/jit/kernel_record.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/hash.h"

namespace heddle::jit {
namespace {

constexpr std::array<char, 8> kMagic{'H', 'E', 'D', 'D', 'L', 'E', 'K', '\n'};
constexpr std::uint32_t kVersion = 1;

/// In the byte order of the machine: a cache is not carried between machines. No padding.
struct FileHeader {
  std::array<char, 8> magic;
  std::uint32_t version, header_size;
  std::uint64_t checksum;  // of everything behind it
  std::array<char, 32> key;
  std::uint64_t verdict_size, log_size, code_size;
  std::int32_t registers, spill_bytes, stack_bytes, static_shared_bytes;
  double compile_ms;
};
static_assert(sizeof(FileHeader) == 104);
constexpr std::size_t kChecked = offsetof(FileHeader, checksum) + sizeof(FileHeader::checksum);

std::uint64_t checksum_of(std::span<const char> bytes) {
  return base::hash_bytes(bytes.data() + kChecked, bytes.size() - kChecked, kVersion);
}

/// The fault of a header, given that the whole file is `size` bytes long; empty when there is none.
std::string complaint(const FileHeader& header, std::string_view key, std::size_t size) {
  if (header.magic != kMagic) return "is no kernel of this cache";
  if (header.version != kVersion || header.header_size != sizeof(FileHeader)) {
    return fmt::format("is of format {}, not {}", header.version, kVersion);
  }
  if (std::string_view(header.key.data(), header.key.size()) != key) return "holds another kernel";
  std::uint64_t rest = size - sizeof(FileHeader);
  for (const std::uint64_t part : {header.verdict_size, header.log_size, header.code_size}) {
    if (part > rest) return "is cut short";
    rest -= part;
  }
  if (rest != 0) return fmt::format("is {} bytes too long", rest);
  return "";
}

bool plausible(const FileHeader& header) {
  return header.registers >= 0 && header.spill_bytes >= 0 && header.stack_bytes >= 0 &&
         header.static_shared_bytes >= 0 && std::isfinite(header.compile_ms) && header.compile_ms >= 0 &&
         (header.verdict_size == 0) == (header.code_size != 0);
}

}  // namespace

std::vector<char> encode(std::string_view key, const Record& record) {
  const MachineCode& code = record.code;
  FileHeader header{.magic = kMagic,
                    .version = kVersion,
                    .header_size = sizeof(FileHeader),
                    .checksum = 0,
                    .key = {},
                    .verdict_size = record.verdict.size(),
                    .log_size = code.log.size(),
                    .code_size = code.bytes.size(),
                    .registers = code.registers,
                    .spill_bytes = code.spill_bytes,
                    .stack_bytes = code.stack_bytes,
                    .static_shared_bytes = code.static_shared_bytes,
                    .compile_ms = code.compile_ms};
  key.copy(header.key.data(), header.key.size());
  std::vector<char> bytes(sizeof(header));
  bytes.insert(bytes.end(), record.verdict.begin(), record.verdict.end());
  bytes.insert(bytes.end(), code.log.begin(), code.log.end());
  bytes.insert(bytes.end(), code.bytes.begin(), code.bytes.end());
  std::memcpy(bytes.data(), &header, sizeof(header));
  header.checksum = checksum_of(bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

std::optional<Record> decode(std::string_view key, std::span<const char> bytes, std::string& why) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) {
    why = fmt::format("is {} bytes long, less than a header", bytes.size());
    return std::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  why = complaint(header, key, bytes.size());
  if (why.empty() && header.checksum != checksum_of(bytes)) why = "does not match its checksum";
  if (why.empty() && !plausible(header)) why = "holds figures that no kernel has";
  if (!why.empty()) return std::nullopt;

  bytes = bytes.subspan(sizeof(header));
  const auto take = [&](std::uint64_t size) {
    const std::span<const char> part = bytes.first(size);
    bytes = bytes.subspan(size);
    return part;
  };
  Record record;
  const auto verdict = take(header.verdict_size), log = take(header.log_size), code = take(header.code_size);
  record.verdict.assign(verdict.begin(), verdict.end());
  record.code.log.assign(log.begin(), log.end());
  record.code.bytes.assign(code.begin(), code.end());
  record.code.registers = header.registers;
  record.code.spill_bytes = header.spill_bytes;
  record.code.stack_bytes = header.stack_bytes;
  record.code.static_shared_bytes = header.static_shared_bytes;
  record.code.compile_ms = header.compile_ms;
  record.code.from = MachineCode::From::disk;
  return record;
}

}  // namespace heddle::jit
