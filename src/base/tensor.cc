#include "heddle/tensor.h"

#include <fmt/format.h>

#include <cstring>
#include <new>

#include "base/element.h"
#include "heddle/error.h"

namespace heddle {
namespace {

constexpr std::align_val_t kAlignment{64};

template <class Void>
BasicTensorView<Void> permuted(const BasicTensorView<Void>& view, const Dims& order) {
  BasicTensorView<Void> result = view;
  std::array<bool, kMaxRank> seen{};
  bool valid = order.size() == view.rank();
  for (int axis = 0; valid && axis < order.size(); ++axis) {
    const std::int64_t from = order[axis];
    valid = from >= 0 && from < view.rank() && !seen[static_cast<std::size_t>(from)];
    if (!valid) break;
    seen[static_cast<std::size_t>(from)] = true;
    result.shape[axis] = view.shape[static_cast<int>(from)];
    result.strides[axis] = view.strides[static_cast<int>(from)];
  }
  if (!valid) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("order is {}; accepted is each axis of a tensor of shape {} exactly once", to_string(order),
                            to_string(view.shape)));
  }
  return result;
}

template <class Void>
BasicTensorView<Void> sliced(const BasicTensorView<Void>& view, int axis, std::int64_t begin, std::int64_t end) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  if (axis < 0 || axis >= view.rank()) {
    const std::string accepted =
        view.rank() == 0 ? "a tensor of rank 0 has no axes"
                         : fmt::format("a tensor of shape {} has axes 0 to {}", to_string(view.shape), view.rank() - 1);
    throw Error(ErrorCode::invalid_argument, fmt::format("axis is {}; {}", axis, accepted));
  }
  if (begin < 0 || begin > end || end > view.shape[axis]) {
    throw Error(ErrorCode::invalid_argument, fmt::format("slice [{}, {}) is not inside axis {} of a tensor of shape {}",
                                                         begin, end, axis, to_string(view.shape)));
  }
  BasicTensorView<Void> result = view;
  result.shape[axis] = end - begin;
  if (element_count(result.shape) != 0) {
    result.data = static_cast<Byte*>(view.data) + begin * view.strides[axis] * size_of(view.dtype);
  }
  return result;
}

}  // namespace

std::string_view name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "CPU";
    case DeviceKind::cuda:
      return "CUDA";
    case DeviceKind::rocm:
      break;
  }
  return "ROCm";
}

TensorView permute(const TensorView& view, const Dims& order) { return permuted(view, order); }
ConstTensorView permute(const ConstTensorView& view, const Dims& order) { return permuted(view, order); }

TensorView slice(const TensorView& view, int axis, std::int64_t begin, std::int64_t end) {
  return sliced(view, axis, begin, end);
}
ConstTensorView slice(const ConstTensorView& view, int axis, std::int64_t begin, std::int64_t end) {
  return sliced(view, axis, begin, end);
}

bool is_contiguous(const ConstTensorView& view) {
  if (element_count(view.shape) == 0) return true;
  std::int64_t expected = 1;
  for (int axis = view.rank() - 1; axis >= 0; --axis) {
    if (view.shape[axis] == 1) continue;
    if (view.strides[axis] != expected) return false;
    expected *= view.shape[axis];
  }
  return true;
}

Tensor::Tensor() : view_(nullptr, DType::f32, Dims{0}) {}

Tensor Tensor::empty(DType dtype, const Dims& shape) {
  const std::int64_t count = element_count(shape);
  std::int64_t bytes = 0;
  const bool overflow = __builtin_mul_overflow(count, size_of(dtype), &bytes);
  // The allocation has at least one byte, so that memcpy and others accept data().
  void* data =
      overflow ? nullptr : ::operator new(static_cast<std::size_t>(bytes > 0 ? bytes : 1), kAlignment, std::nothrow);
  if (data == nullptr) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot allocate a {} tensor of shape {}", name(dtype), to_string(shape)));
  }
  std::shared_ptr<void> owner(data, [](void* memory) { ::operator delete(memory, kAlignment); });
  return adopt(TensorView(data, dtype, shape), std::move(owner));
}

Tensor Tensor::zeros(DType dtype, const Dims& shape) {
  Tensor tensor = empty(dtype, shape);
  std::memset(tensor.data(), 0, static_cast<std::size_t>(tensor.count() * size_of(dtype)));
  return tensor;
}

Tensor Tensor::adopt(const TensorView& view, std::shared_ptr<void> owner) {
  Tensor tensor;
  tensor.view_ = view;
  tensor.owner_ = std::move(owner);
  return tensor;
}

Tensor Tensor::to(DType dtype) const { return copy(view_, dtype); }

double get_element(const ConstTensorView& view, const Dims& index) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < view.rank(); ++axis) offset += index[axis] * view.strides[axis];
  return base::load_element(view.data, view.dtype, offset);
}

}  // namespace heddle
