#include "plan/access/kernel_types.h"

#include <fmt/format.h>

#include "heddle/error.h"

namespace heddle::plan {

shared::StorageType storage_type_of(DType dtype) {
  using shared::StorageType;
  switch (dtype) {
    case DType::f64:
      return StorageType::f64;
    case DType::f32:
      return StorageType::f32;
    case DType::f16:
      return StorageType::f16;
    case DType::bf16:
      return StorageType::bf16;
    case DType::e4m3:
      return StorageType::e4m3;
    case DType::e5m2:
      return StorageType::e5m2;
    default:
      throw Error(ErrorCode::internal, fmt::format("a kernel that reads or stores {}", name(dtype)));
  }
}

shared::StorageType output_type_of(DType dtype, DType own) {
  return dtype == own ? shared::StorageType::same : storage_type_of(dtype);
}

shared::Fp8 fp8_of(DType dtype) {
  if (dtype == DType::e4m3) return shared::Fp8::e4m3;
  return dtype == DType::e5m2 ? shared::Fp8::e5m2 : shared::Fp8::none;
}

shared::Normalizer normalizer_of(const problem::AttentionProblem& problem) {
  switch (problem.normalizer) {
    case Normalizer::none:
      return shared::Normalizer::none;
    case Normalizer::sigmoid:
      return shared::Normalizer::sigmoid;
    case Normalizer::softmax:
      break;
  }
  return shared::Normalizer::softmax;
}

}  // namespace heddle::plan
