// Strided copies with conversion, a row at a time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/element.h"
#include "base/rows.h"
#include "heddle/error.h"
#include "heddle/tensor.h"

namespace heddle {
namespace {

constexpr std::int64_t kChunk = 512;

/// An integer of up to 64 bits as a double with a sticky last bit (rounded to odd), so that the rounding that follows,
/// to 24 bits or fewer, is the only one.
template <class Integer>
double decode_sticky(Integer x) {
  const bool negative = x < 0;
  const std::uint64_t magnitude = negative ? 0u - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
  const int surplus = std::max(0, static_cast<int>(std::bit_width(magnitude)) - 53);
  const std::uint64_t lost = magnitude & ((std::uint64_t{1} << surplus) - 1);
  const std::uint64_t kept = ((magnitude >> surplus) | (lost != 0 ? 1u : 0u)) << surplus;
  return negative ? -static_cast<double>(kept) : static_cast<double>(kept);
}

void load_chunk(const void* data, DType dtype, std::int64_t offset, std::int64_t stride, std::int64_t count,
                bool sticky, double* out) {
  base::with_storage_type(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < count; ++i) {
      const T x = base::load_raw<T>(data, offset + i * stride);
      if constexpr (std::is_integral_v<T>) {
        out[i] = sticky ? decode_sticky(x) : base::decode(x);
      } else {
        out[i] = base::decode(x);
      }
    }
  });
}

void store_chunk(void* data, DType dtype, std::int64_t offset, std::int64_t count, const double* in) {
  base::with_storage_type(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < count; ++i) base::store_raw(data, offset + i, base::encode<T>(in[i]));
  });
}

void copy_same_row(const ConstTensorView& from, std::int64_t offset, std::int64_t stride, std::int64_t count, void* to,
                   std::int64_t to_offset) {
  const std::int64_t size = size_of(from.dtype);
  const auto* source = static_cast<const std::byte*>(from.data) + offset * size;
  auto* target = static_cast<std::byte*>(to) + to_offset * size;
  if (stride == 1) {
    std::memcpy(target, source, static_cast<std::size_t>(count * size));
    return;
  }
  base::with_storage_type(from.dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < count; ++i) base::store_raw(target, i, base::load_raw<T>(source, i * stride));
  });
}

/// i64 to u64 and back, which a double cannot carry.
void saturate_sign_row(const ConstTensorView& from, std::int64_t offset, std::int64_t stride, std::int64_t count,
                       void* to, std::int64_t to_offset) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = base::load_raw<std::uint64_t>(from.data, offset + i * stride);
    const bool representable = static_cast<std::int64_t>(bits) >= 0;
    const std::uint64_t limit = from.dtype == DType::i64 ? 0u : std::uint64_t{INT64_MAX};
    base::store_raw<std::uint64_t>(to, to_offset + i, representable ? bits : limit);
  }
}

void convert_row(const ConstTensorView& from, std::int64_t offset, std::int64_t stride, std::int64_t count,
                 TensorView to, std::int64_t to_offset) {
  std::array<double, kChunk> chunk;
  const bool sticky = to.dtype != DType::f64;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t length = std::min(kChunk, count - begin);
    load_chunk(from.data, from.dtype, offset + begin * stride, stride, length, sticky, chunk.data());
    store_chunk(to.data, to.dtype, to_offset + begin, length, chunk.data());
  }
}

}  // namespace

Tensor copy(const ConstTensorView& view, DType dtype) {
  if (view.device.kind != DeviceKind::cpu) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("copy of a tensor of shape {} on a GPU; only CPU memory is accepted", to_string(view.shape)));
  }
  Tensor result = Tensor::empty(dtype, view.shape);
  const bool same = view.dtype == dtype;
  const bool sign_only =
      (view.dtype == DType::i64 && dtype == DType::u64) || (view.dtype == DType::u64 && dtype == DType::i64);
  const base::Walk walk = base::coalesce(view.shape, view.strides);
  const std::int64_t length = walk.row_length();
  const std::int64_t stride = walk.row_stride();
  std::int64_t written = 0;
  base::for_each_row(walk, [&](std::int64_t offset) {
    if (same) {
      copy_same_row(view, offset, stride, length, result.data(), written);
    } else if (sign_only) {
      saturate_sign_row(view, offset, stride, length, result.data(), written);
    } else {
      convert_row(view, offset, stride, length, result, written);
    }
    written += length;
  });
  return result;
}

}  // namespace heddle
