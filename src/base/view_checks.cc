#include "base/view_checks.h"

#include <fmt/format.h>

#include <cstdlib>

#include "heddle/error.h"

namespace heddle::base {
namespace {

constexpr std::int64_t kLargestSpan = std::int64_t{1} << 61;

template <class... Arguments>
[[noreturn]] void refuse(fmt::format_string<Arguments...> sentence, Arguments&&... arguments) {
  throw Error(ErrorCode::invalid_argument, fmt::format(sentence, std::forward<Arguments>(arguments)...));
}

}  // namespace

std::string describe(const ConstTensorView& view) {
  return fmt::format("{} {}", name(view.dtype), to_string(view.shape));
}

bool count_overflows(const Dims& shape) {
  std::int64_t count = 1;
  bool overflow = false;
  for (std::int64_t extent : shape) {
    if (extent == 0) return false;
    overflow = overflow || __builtin_mul_overflow(count, extent, &count);
  }
  return overflow;
}

Footprint footprint_of(std::string_view name, const ConstTensorView& view) {
  if (view.count() == 0) return {};
  const std::int64_t size = size_of(view.dtype);
  Footprint footprint = {.lowest = 0, .bytes = size};
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.shape[axis] == 1) continue;
    std::int64_t reach = 0;
    if (view.strides[axis] == INT64_MIN ||
        __builtin_mul_overflow(view.shape[axis] - 1, std::abs(view.strides[axis]), &reach) ||
        __builtin_mul_overflow(reach, size, &reach) ||
        __builtin_add_overflow(footprint.bytes, reach, &footprint.bytes) || footprint.bytes >= kLargestSpan) {
      throw Error(ErrorCode::out_of_memory,
                  fmt::format("{} of shape {} and strides {} spans more than 2^61 bytes; offsets are 64-bit", name,
                              to_string(view.shape), to_string(view.strides)));
    }
    if (view.strides[axis] < 0) footprint.lowest -= reach;
  }
  return footprint;
}

void check_view(std::string_view name, const ConstTensorView& view) {
  if (view.strides.size() != view.rank()) {
    refuse("{} has shape {} and strides {}; a stride an axis is accepted", name, to_string(view.shape),
           to_string(view.strides));
  }
  for (std::int64_t extent : view.shape) {
    if (extent < 0) refuse("{} has shape {}; extents of at least 0 are accepted", name, to_string(view.shape));
  }
  if (count_overflows(view.shape)) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{} has shape {}, whose product overflows 64 bits", name, to_string(view.shape)));
  }
  if (view.device.kind == DeviceKind::cpu && view.device.index != 0) {
    refuse("{} has device index {}; of the CPU 0 is accepted", name, view.device.index);
  }
  footprint_of(name, view);
}

void check_memory(std::string_view name, const ConstTensorView& view) {
  if (view.count() == 0) return;
  if (view.data == nullptr) refuse("{} is {} but its data is null", name, describe(view));
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(size_of(view.dtype)) != 0) {
    refuse("{} is {} but its data is not aligned to {} bytes", name, describe(view), size_of(view.dtype));
  }
}

}  // namespace heddle::base
