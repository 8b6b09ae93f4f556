#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "files/safetensors.h"
#include "files/safetensors_dtypes.h"
#include "files/view_bytes.h"

namespace heddle {
namespace files {
namespace {

/// Declaration order is the order in the file.
using Json = nlohmann::ordered_json;

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

std::string header_text(const std::vector<OrderedTensor>& ordered, const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t position = 0;
  for (const OrderedTensor& item : ordered) {
    const Tensor& tensor = *item.tensor;
    const auto bytes = static_cast<std::uint64_t>(tensor.count() * size_of(tensor.dtype()));
    Json entry;
    entry["dtype"] = kSafetensorsTypes[item.type].name;
    entry["shape"] = std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end());
    entry["data_offsets"] = {position, position + bytes};
    // Not operator[], which searches all names before.
    header.get_ref<Json::object_t&>().emplace_back(*item.name, std::move(entry));
    position += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw Error(ErrorCode::invalid_argument, "a tensor's name or a metadata entry is not UTF-8");
  }
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
