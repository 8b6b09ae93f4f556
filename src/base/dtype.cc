#include "heddle/dtype.h"

#include <fmt/format.h>

#include <array>

#include "base/small_float.h"
#include "heddle/error.h"

namespace heddle {
namespace {

struct Row {
  std::string_view name;
  std::int64_t size;
};

constexpr std::array<Row, kDTypeCount> kRows{{
    {"f64", 8},
    {"f32", 4},
    {"f16", 2},
    {"bf16", 2},
    {"e4m3", 1},
    {"e5m2", 1},
    {"i64", 8},
    {"i32", 4},
    {"i16", 2},
    {"i8", 1},
    {"u64", 8},
    {"u32", 4},
    {"u16", 2},
    {"u8", 1},
    {"bool", 1},
}};

const Row& row(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  if (index >= kRows.size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("dtype {} is not one of heddle::DType", index));
  }
  return kRows[index];
}

}  // namespace

std::int64_t size_of(DType dtype) { return row(dtype).size; }

std::string_view name(DType dtype) { return row(dtype).name; }

DType parse_dtype(std::string_view text) {
  std::string accepted;
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == text) return static_cast<DType>(i);
    accepted += fmt::format("{}{}", i == 0 ? "" : ", ", kRows[i].name);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("dtype is '{}'; accepted are {}", text, accepted));
}

bool is_floating(DType dtype) { return dtype <= DType::e5m2; }

float to_f32(f16 x) { return base::widen<base::kF16>(x.bits); }
float to_f32(bf16 x) { return base::widen<base::kBf16>(x.bits); }
float to_f32(e4m3 x) { return base::widen<base::kE4m3>(x.bits); }
float to_f32(e5m2 x) { return base::widen<base::kE5m2>(x.bits); }

f16 to_f16(double x) { return {static_cast<std::uint16_t>(base::narrow<base::kF16>(x))}; }
bf16 to_bf16(double x) { return {static_cast<std::uint16_t>(base::narrow<base::kBf16>(x))}; }
e4m3 to_e4m3(double x) { return {static_cast<std::uint8_t>(base::narrow<base::kE4m3>(x))}; }
e5m2 to_e5m2(double x) { return {static_cast<std::uint8_t>(base::narrow<base::kE5m2>(x))}; }

}  // namespace heddle
