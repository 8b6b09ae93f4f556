#include "backend/gpu/row_tensors.h"

#include <fmt/format.h>

#include <cstdint>

#include "heddle/error.h"

namespace heddle::gpu {

void check_address(std::string_view name, const void* address, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} is at {}; the kernel was planned for an address that {} divides (plan for tensors at such "
                  "addresses as this one, or copy it)",
                  name, fmt::ptr(address), bytes));
}

shared::Descale descale_of(const std::optional<ConstTensorView>& view) {
  if (!view) return {};
  const auto stride = [&](int axis) { return view->shape[axis] == 1 ? 0 : view->strides[axis]; };
  return {static_cast<const float*>(view->data), {stride(0), stride(1)}};
}

}  // namespace heddle::gpu
