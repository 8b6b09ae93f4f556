#include "plan/access/tma_refuses.h"

#include <fmt/format.h>

namespace heddle::plan {
namespace {

constexpr std::int64_t kStrideEnd = std::int64_t{1} << 40;  // of what TMA takes, in bytes

}  // namespace

std::string tma_refuses(const ConstTensorView& view) {
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] == 1) continue;
    const std::int64_t stride = view.strides[axis], unit = kTmaBytes / size_of(view.dtype),
                       end = kStrideEnd / size_of(view.dtype);
    if (stride >= 0 && stride % unit == 0 && stride < end) continue;
    return fmt::format("its strides are {}, and TMA takes multiples of {} elements, from 0 on and below {}",
                       to_string(view.strides), unit, end);
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % kTmaBytes == 0) return {};
  return fmt::format("its address is no multiple of {}, as TMA takes", kTmaBytes);
}

}  // namespace heddle::plan
