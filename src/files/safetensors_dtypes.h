// The names that safetensors gives to element types.
#pragma once

#include <array>
#include <string_view>

#include "heddle/dtype.h"

namespace heddle::files {

struct SafetensorsType {
  DType dtype;
  std::string_view name;
};

/// In the order in which the reference implementation lays out tensors. Rows like those of kNpyTypes, of another
/// format.
inline constexpr std::array<SafetensorsType, kDTypeCount> kSafetensorsTypes{{
    {DType::u64, "U64"},
    {DType::i64, "I64"},
    {DType::f64, "F64"},
    {DType::f32, "F32"},
    {DType::u32, "U32"},
    {DType::i32, "I32"},
    {DType::bf16, "BF16"},
    {DType::f16, "F16"},
    {DType::u16, "U16"},
    {DType::i16, "I16"},
    {DType::e4m3, "F8_E4M3"},
    {DType::e5m2, "F8_E5M2"},
    {DType::i8, "I8"},
    {DType::u8, "U8"},
    {DType::boolean, "BOOL"},
}};

}  // namespace heddle::files
