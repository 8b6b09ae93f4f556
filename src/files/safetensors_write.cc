#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "files/safetensors.h"
#include "files/safetensors_dtypes.h"
#include "files/view_bytes.h"

namespace heddle {
namespace files {
namespace {

/// Declaration order is the order in the file.
struct OrderedTensor {
  std::size_t type;  // row of kSafetensorsTypes
  const std::string* name;
  const Tensor* tensor;
};

std::vector<OrderedTensor> in_file_order(const TensorFile& file) {
  std::vector<OrderedTensor> ordered;
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "__metadata__") {
      throw Error(ErrorCode::invalid_argument, "a tensor is named '__metadata__', which safetensors keeps for itself");
    }
    require_cpu(tensor, fmt::format("tensor '{}'", name));
    const DType dtype = tensor.dtype();
    const auto row = std::find_if(kSafetensorsTypes.begin(), kSafetensorsTypes.end(),
                                  [&](const SafetensorsType& type) { return type.dtype == dtype; });
    ordered.push_back({static_cast<std::size_t>(row - kSafetensorsTypes.begin()), &name, &tensor});
  }
  // The map is ordered by name already.
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const OrderedTensor& a, const OrderedTensor& b) { return a.type < b.type; });
  return ordered;
}

void require_utf8(std::string_view text) {
  if (base::is_utf8(text)) return;
  throw Error(ErrorCode::invalid_argument, "a tensor's name or a metadata entry is not UTF-8");
}

std::string header_text(const std::vector<OrderedTensor>& ordered, const std::map<std::string, std::string>& metadata) {
  base::JsonObject header;
  if (!metadata.empty()) {
    base::JsonObject entries;
    for (const auto& [name, value] : metadata) {
      require_utf8(name);
      require_utf8(value);
      entries.add(name, value);
    }
    header.add("__metadata__", entries);
  }
  std::int64_t position = 0;
  for (const OrderedTensor& item : ordered) {
    const Tensor& tensor = *item.tensor;
    const std::int64_t end = position + tensor.count() * size_of(tensor.dtype());
    require_utf8(*item.name);
    base::JsonObject entry;
    entry.add("dtype", kSafetensorsTypes[item.type].name);
    entry.add("shape", std::span(tensor.shape().begin(), tensor.shape().end()));
    entry.add("data_offsets", std::array{position, end});
    header.add(*item.name, entry);
    position = end;
  }
  std::string text = header.text();
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the safetensors header would have {} bytes; accepted are at "
                                                         "most {}",
                                                         text.size(), kMaxHeaderBytes));
  }
  return text;
}

}  // namespace

void write_safetensors(const TensorFile& file, ByteSink& sink) {
  const std::vector<OrderedTensor> ordered = in_file_order(file);
  const std::string header = header_text(ordered, file.metadata);
  const std::uint64_t length = header.size();
  sink.write(std::as_bytes(std::span(&length, 1)));
  sink.write(std::as_bytes(std::span(header)));
  for (const OrderedTensor& item : ordered) write_row_major(*item.tensor, sink);
}

}  // namespace files

void save_safetensors(const std::filesystem::path& path, const TensorFile& file) {
  files::ReplacingFile target(path);
  files::write_safetensors(file, target);
  target.commit();
}

}  // namespace heddle
