// Element types and their exact conversions, one element at a time. Conversions of whole tensors: Tensor::to.
#pragma once

#include <cstdint>
#include <string_view>

namespace heddle {

/// Element types that a tensor may hold. Attention computes on the first six; captures may be any.
enum class DType : std::uint8_t { f64, f32, f16, bf16, e4m3, e5m2, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

inline constexpr int kDTypeCount = 15;

/// Bytes of one element.
std::int64_t size_of(DType dtype);
/// The name used everywhere in text: "f64", "f32", "f16", "bf16", "e4m3", "e5m2", "i64", ..., "bool".
std::string_view name(DType dtype);
/// The inverse of name(). Throws invalid_argument that lists the accepted names.
DType parse_dtype(std::string_view text);
/// True for f64, f32, f16, bf16, e4m3, e5m2.
bool is_floating(DType dtype);

/// Storage of the small floating types: the bits, with no arithmetic. e4m3 is the OCP "fn" variant (no infinity, NaN
/// 0x7f/0xff).
struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};
struct e4m3 {
  std::uint8_t bits;
};
struct e5m2 {
  std::uint8_t bits;
};

/// Exact widening; NaN stays NaN.
float to_f32(f16 x);
float to_f32(bf16 x);
float to_f32(e4m3 x);
float to_f32(e5m2 x);

/// Round to nearest, ties to even, in one rounding from the argument (double does not go through float). Overflow
/// becomes infinity (e4m3, which has none: NaN); NaN stays NaN; subnormals are kept.
f16 to_f16(double x);
bf16 to_bf16(double x);
e4m3 to_e4m3(double x);
e5m2 to_e5m2(double x);

}  // namespace heddle
