// Tensor files in memory, and what the tests compare of them.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "files/byte_sink.h"
#include "files/byte_source.h"
#include "heddle/tensor.h"

namespace heddle {

inline files::MemorySource source_of(const std::string& bytes) {
  return files::MemorySource(std::as_bytes(std::span(bytes)));
}

inline std::string text_of(const files::MemorySink& sink) {
  return std::string(reinterpret_cast<const char*>(sink.bytes.data()), sink.bytes.size());
}

/// The elements in row-major order, as doubles.
inline std::vector<double> elements(const Tensor& tensor) {
  const Tensor doubles = tensor.to(DType::f64);
  const auto* data = static_cast<const double*>(doubles.data());
  return std::vector<double>(data, data + doubles.count());
}

/// The elements' bytes in row-major order.
inline std::string element_bytes(const ConstTensorView& view) {
  const Tensor packed = copy(view, view.dtype);
  return std::string(static_cast<const char*>(packed.data()),
                     static_cast<std::size_t>(packed.count() * size_of(packed.dtype())));
}

inline Tensor random_bits(DType dtype, const Dims& shape, std::mt19937_64& random) {
  Tensor tensor = Tensor::empty(dtype, shape);
  auto* data = static_cast<unsigned char*>(tensor.data());
  for (std::int64_t i = 0; i < tensor.count() * size_of(dtype); ++i) data[i] = static_cast<unsigned char>(random());
  return tensor;
}

}  // namespace heddle
