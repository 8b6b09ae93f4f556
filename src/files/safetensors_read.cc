#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "files/safetensors.h"
#include "files/safetensors_dtypes.h"
#include "files/safetensors_header.h"
#include "files/view_bytes.h"

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

namespace heddle {
namespace files {
namespace {

constexpr std::uint64_t kLengthBytes = 8;

std::string read_header(const ByteSource& source) {
  if (source.size() < kLengthBytes) {
    throw source.error(
        fmt::format("it has {} bytes, fewer than the {} of the header's length", source.size(), kLengthBytes));
  }
  std::uint64_t length = 0;
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMaxHeaderBytes) {
    throw source.error(fmt::format("its header length is {}; accepted are at most {} bytes", length, kMaxHeaderBytes));
  }
  if (length > source.size() - kLengthBytes) {
    throw source.error(
        fmt::format("its header length is {}, but only {} bytes follow", length, source.size() - kLengthBytes));
  }
  std::string header(length, '\0');
  source.read(kLengthBytes, std::as_writable_bytes(std::span(header)));
  return header;
}

/// The header without the spaces that pad it.
std::string_view unpadded(std::string_view header, const ByteSource& source) {
  if (!header.starts_with('{')) throw source.error("its header does not begin with '{'");
  header = header.substr(0, header.find_last_not_of(' ') + 1);
  if (!header.ends_with('}')) throw source.error("its header does not end with '}' and spaces");
  return header;
}

struct ListedTensor {
  std::string_view name;
  std::optional<DType> dtype;  // none: skipped
  const SafetensorsEntry* entry;
};

std::optional<DType> dtype_of(const SafetensorsEntry& entry) {
  for (const SafetensorsType& type : kSafetensorsTypes) {
    if (type.name == entry.dtype) return type.dtype;
  }
  return std::nullopt;
}

/// Why a tensor cannot be held. Empty when it can.
std::string why_skipped(std::string_view tensor, const SafetensorsEntry& entry) {
  if (!dtype_of(entry))
    return fmt::format("tensor '{}' has dtype '{}', which heddle does not have", tensor, entry.dtype);
  if (entry.axes > kMaxRank) return fmt::format("tensor '{}' has {} axes, more than {}", tensor, entry.axes, kMaxRank);
  return {};
}

void check_size(const ListedTensor& tensor, const ByteSource& source) {
  const SafetensorsEntry& entry = *tensor.entry;
  if (!tensor.dtype) {  // how many bytes it should have is not known
    if (entry.begin <= entry.end) return;
    throw source.error(fmt::format("tensor '{}' ends before it begins: its data_offsets are [{}, {}]", tensor.name,
                                   entry.begin, entry.end));
  }
  const std::uint64_t bytes = stated_bytes(entry.shape, *tensor.dtype, source, fmt::format("tensor '{}'", tensor.name));
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    throw source.error(
        fmt::format("tensor '{}' of dtype {} and shape {} takes {} bytes, but its data_offsets are "
                    "[{}, {}]",
                    tensor.name, entry.dtype, to_string(entry.shape), bytes, entry.begin, entry.end));
  }
}

/// The tensors, in the order of their data, cover the bytes after the header exactly once.
void check_coverage(const std::vector<ListedTensor>& tensors, std::uint64_t data_bytes, const ByteSource& source) {
  std::uint64_t covered = 0;
  std::string_view before;
  for (const ListedTensor& tensor : tensors) {
    const std::uint64_t begin = tensor.entry->begin;
    if (begin < covered) {
      throw source.error(
          fmt::format("tensors '{}' and '{}' overlap at byte {} of the data", before, tensor.name, begin));
    }
    if (begin > covered) {
      throw source.error(fmt::format("no tensor covers the bytes [{}, {}) of the data", covered, begin));
    }
    covered = tensor.entry->end;
    before = tensor.name;
  }
  if (covered > data_bytes) {
    throw source.error(
        fmt::format("it is truncated: the tensors take {} bytes, but {} follow the header", covered, data_bytes));
  }
  if (covered < data_bytes) {
    throw source.error(fmt::format("{} bytes are left over after the last tensor", data_bytes - covered));
  }
}

}  // namespace

TensorFile read_safetensors(const ByteSource& source) {
  const std::string padded = read_header(source);
  SafetensorsHeader header = parse_safetensors_header(unpadded(padded, source), source);
  TensorFile file;
  std::vector<ListedTensor> tensors;
  for (const auto& [name, entry] : header.tensors) {
    const std::string reason = why_skipped(name, entry);
    if (!reason.empty()) file.skipped[name] = source.error(reason).what();
    tensors.push_back({name, reason.empty() ? dtype_of(entry) : std::nullopt, &entry});
  }
  std::sort(tensors.begin(), tensors.end(), [](const ListedTensor& a, const ListedTensor& b) {
    return std::pair(a.entry->begin, a.entry->end) < std::pair(b.entry->begin, b.entry->end);
  });
  for (const ListedTensor& tensor : tensors) check_size(tensor, source);
  const std::uint64_t data_begin = kLengthBytes + padded.size();
  check_coverage(tensors, source.size() - data_begin, source);

  file.metadata = std::move(header.metadata);
  for (const ListedTensor& tensor : tensors) {
    if (!tensor.dtype) continue;
    Tensor loaded = Tensor::empty(*tensor.dtype, tensor.entry->shape);
    source.read(data_begin + tensor.entry->begin,
                {static_cast<std::byte*>(loaded.data()), tensor.entry->end - tensor.entry->begin});
    file.tensors.emplace(tensor.name, std::move(loaded));
  }
  return file;
}

}  // namespace files

TensorFile load_safetensors(const std::filesystem::path& path) {
  return files::read_safetensors(files::FileSource(path));
}

}  // namespace heddle
