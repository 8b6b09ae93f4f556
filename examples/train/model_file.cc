#include "model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "heddle/heddle.h"

namespace {

using heddle::DType;
using heddle::Tensor;

/// A tensor over the values themselves, which nobody else owns.
Tensor tensor_of(Matrix& matrix) {
  return Tensor::adopt({matrix.values.data(),
                        DType::f32,
                        {static_cast<std::int64_t>(matrix.rows), static_cast<std::int64_t>(matrix.columns)}},
                       nullptr);
}

const Tensor& tensor_in(const heddle::TensorFile& file, const std::string& path, const std::string& name, DType dtype) {
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end() || found->second.dtype() != dtype) {
    throw heddle::Error(heddle::ErrorCode::io,
                        fmt::format("{}: has no tensor \"{}\" of {}; a file of train_model --save is accepted", path,
                                    name, heddle::name(dtype)));
  }
  return found->second;
}

}  // namespace

void save_model(const std::string& path, Model& model, const std::string& characters) {
  heddle::TensorFile file;
  for (const auto& [name, parameter] : model.parameters()) file.tensors[name] = tensor_of(parameter->value);
  Tensor bytes = Tensor::empty(DType::u8, {static_cast<std::int64_t>(characters.size())});
  std::ranges::copy(characters, static_cast<char*>(bytes.data()));
  file.tensors["characters"] = bytes;
  heddle::save_safetensors(path, file);
}

SavedModel load_model(const std::string& path) {
  const heddle::TensorFile file = heddle::load_safetensors(path);
  const Tensor& bytes = tensor_in(file, path, "characters", DType::u8);
  const auto* first = static_cast<const char*>(bytes.data());
  SavedModel saved{Model(static_cast<std::size_t>(bytes.count())), std::string(first, first + bytes.count())};
  for (const auto& [name, parameter] : saved.model.parameters()) {
    const Tensor &given = tensor_in(file, path, name, DType::f32), own = tensor_of(parameter->value);
    if (!(given.shape() == own.shape())) {
      throw heddle::Error(heddle::ErrorCode::io,
                          fmt::format("{}: \"{}\" is {}, not {}", path, name, heddle::to_string(given.shape()),
                                      heddle::to_string(own.shape())));
    }
    std::copy_n(static_cast<const float*>(given.data()), given.count(), parameter->value.values.data());
  }
  return saved;
}
