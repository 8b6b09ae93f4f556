// One element of CPU memory as a double, inline for the loops of oracles and copies. Offsets count elements; the memory
// need not be aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/small_float.h"
#include "heddle/dtype.h"

namespace heddle::base {

/// Storage of DType::boolean: any non-zero byte is true.
struct Boolean {
  std::uint8_t bits;
};

/// Calls body(std::type_identity<T>{}) with the storage type of `dtype`: double, float, f16, ..., std::int64_t, ...,
/// Boolean.
template <class Body>
decltype(auto) with_storage_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64:
      return body(std::type_identity<double>{});
    case DType::f32:
      return body(std::type_identity<float>{});
    case DType::f16:
      return body(std::type_identity<f16>{});
    case DType::bf16:
      return body(std::type_identity<bf16>{});
    case DType::e4m3:
      return body(std::type_identity<e4m3>{});
    case DType::e5m2:
      return body(std::type_identity<e5m2>{});
    case DType::i64:
      return body(std::type_identity<std::int64_t>{});
    case DType::i32:
      return body(std::type_identity<std::int32_t>{});
    case DType::i16:
      return body(std::type_identity<std::int16_t>{});
    case DType::i8:
      return body(std::type_identity<std::int8_t>{});
    case DType::u64:
      return body(std::type_identity<std::uint64_t>{});
    case DType::u32:
      return body(std::type_identity<std::uint32_t>{});
    case DType::u16:
      return body(std::type_identity<std::uint16_t>{});
    case DType::u8:
      return body(std::type_identity<std::uint8_t>{});
    case DType::boolean:
      break;
  }
  return body(std::type_identity<Boolean>{});
}

/// Truncates towards zero and saturates; NaN gives 0.
template <class Integer>
Integer saturate(double x) {
  using Limits = std::numeric_limits<Integer>;
  if (x != x) return 0;
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  if (x >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<Integer>(x);
}

/// Exact, but for 64-bit integers above 2^53, which round to nearest even.
template <class T>
double decode(T x) {
  if constexpr (std::is_same_v<T, f16>) {
    return widen<kF16>(x.bits);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return widen<kBf16>(x.bits);
  } else if constexpr (std::is_same_v<T, e4m3>) {
    return widen<kE4m3>(x.bits);
  } else if constexpr (std::is_same_v<T, e5m2>) {
    return widen<kE5m2>(x.bits);
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return x.bits != 0 ? 1.0 : 0.0;
  } else {
    return static_cast<double>(x);
  }
}

/// One rounding to nearest even; integers as in saturate(); boolean: x != 0.
template <class T>
T encode(double x) {
  if constexpr (std::is_same_v<T, f16>) {
    return {static_cast<std::uint16_t>(narrow<kF16>(x))};
  } else if constexpr (std::is_same_v<T, bf16>) {
    return {static_cast<std::uint16_t>(narrow<kBf16>(x))};
  } else if constexpr (std::is_same_v<T, e4m3>) {
    return {static_cast<std::uint8_t>(narrow<kE4m3>(x))};
  } else if constexpr (std::is_same_v<T, e5m2>) {
    return {static_cast<std::uint8_t>(narrow<kE5m2>(x))};
  } else if constexpr (std::is_same_v<T, Boolean>) {
    return {static_cast<std::uint8_t>(x != 0 ? 1 : 0)};
  } else if constexpr (std::is_integral_v<T>) {
    return saturate<T>(x);
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
T load_raw(const void* data, std::int64_t offset) {
  T x;
  std::memcpy(&x, static_cast<const std::byte*>(data) + offset * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return x;
}

template <class T>
void store_raw(void* data, std::int64_t offset, T x) {
  std::memcpy(static_cast<std::byte*>(data) + offset * static_cast<std::int64_t>(sizeof(T)), &x, sizeof(T));
}

/// Element `offset` after `data`; decode() says how.
inline double load_element(const void* data, DType dtype, std::int64_t offset) {
  return with_storage_type(dtype, [&]<class T>(std::type_identity<T>) { return decode(load_raw<T>(data, offset)); });
}

/// Element `offset` after `data`; encode() says how.
inline void store_element(void* data, DType dtype, std::int64_t offset, double x) {
  with_storage_type(dtype, [&]<class T>(std::type_identity<T>) { store_raw(data, offset, encode<T>(x)); });
}

}  // namespace heddle::base
