#include "files/view_bytes.h"

#include <fmt/format.h>

#include <algorithm>

#include "heddle/error.h"

namespace heddle::files {

std::uint64_t stated_bytes(const Dims& shape, DType dtype, const ByteSource& source, const std::string& who) {
  // An extent of 0 counts as 1: the strides of the other axes have to be representable too.
  std::int64_t product = size_of(dtype);
  bool overflow = false;
  for (const std::int64_t extent : shape) {
    overflow |= __builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product);
  }
  if (overflow) throw source.error(fmt::format("{} of shape {} has more than 2^63 - 1 bytes", who, to_string(shape)));
  return static_cast<std::uint64_t>(element_count(shape) * size_of(dtype));
}

void require_cpu(const ConstTensorView& view, const std::string& who) {
  if (view.device.kind != DeviceKind::cpu) {
    throw Error(ErrorCode::unsupported, fmt::format("{} is on a GPU; only CPU memory can be written", who));
  }
}

void write_row_major(const ConstTensorView& view, ByteSink& sink) {
  if (!is_contiguous(view)) return write_row_major(copy(view, view.dtype), sink);
  const auto bytes = static_cast<std::size_t>(view.count() * size_of(view.dtype));
  if (bytes != 0) sink.write({static_cast<const std::byte*>(view.data), bytes});
}

}  // namespace heddle::files
