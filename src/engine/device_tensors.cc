// Tensors on any device: allocation there, copies from one to another.
#include <fmt/format.h>

#include <utility>

#include "backend/device.h"
#include "heddle/error.h"
#include "heddle/tensor.h"

namespace heddle {
namespace {

/// The device's kind; throws unsupported for a device that is not there.
const backend::DeviceInterface& kind_of(const Device& device) {
  const backend::DeviceInterface* kind = backend::find_device_kind(device.kind);
  if (kind == nullptr) {
    throw Error(ErrorCode::unsupported, fmt::format("this build has no backend for {} devices", name(device.kind)));
  }
  const int count = kind->count();
  if (device.index >= 0 && device.index < count) return *kind;
  if (device.kind == DeviceKind::cpu) {
    throw Error(ErrorCode::unsupported, fmt::format("there is no CPU {}; its only index is 0", device.index));
  }
  const std::string missing = kind->missing();
  if (!missing.empty()) throw Error(ErrorCode::unsupported, missing);
  throw Error(ErrorCode::unsupported,
              fmt::format("there is no {} device {}; this machine has {}", name(device.kind), device.index, count));
}

std::size_t byte_count(DType dtype, const Dims& shape) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(element_count(shape), size_of(dtype), &bytes)) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot allocate a {} tensor of shape {}", name(dtype), to_string(shape)));
  }
  return static_cast<std::size_t>(bytes);
}

/// A contiguous CPU copy of a view of a GPU's memory: one copy of all the memory that the view spans, then the elements
/// out of it.
Tensor to_host(const ConstTensorView& view) {
  if (view.count() == 0) return Tensor::empty(view.dtype, view.shape);
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    (view.strides[axis] < 0 ? first : last) += (view.shape[axis] - 1) * view.strides[axis];
  }
  const Tensor span = Tensor::empty(view.dtype, {last - first + 1});
  const std::int64_t size = size_of(view.dtype);
  kind_of(view.device)
      .copy_and_wait(view.device.index, span.data(), static_cast<const std::byte*>(view.data) + first * size,
                     byte_count(view.dtype, span.shape()));
  // A view without gaps is the copy already.
  auto* begin = static_cast<std::byte*>(span.data()) - first * size;
  if (is_contiguous(view)) {
    return Tensor::adopt({begin, view.dtype, view.shape}, std::make_shared<Tensor>(span));
  }
  return copy({begin, view.dtype, view.shape, view.strides}, view.dtype);
}

}  // namespace

Tensor Tensor::empty_on(const Device& device, DType dtype, const Dims& shape) {
  const backend::DeviceInterface& kind = kind_of(device);
  if (device.kind == DeviceKind::cpu) return empty(dtype, shape);
  std::shared_ptr<void> memory = kind.allocate(device.index, byte_count(dtype, shape));
  void* data = memory.get();
  return adopt(TensorView(data, dtype, shape, device), std::move(memory));
}

Tensor Tensor::to(const Device& device) const {
  const backend::DeviceInterface& kind = kind_of(device);
  const bool from_gpu = kind_of(view_.device).kind() != DeviceKind::cpu;
  if (device.kind == DeviceKind::cpu) return from_gpu ? to_host(view_) : copy(view_, view_.dtype);
  Tensor result = empty_on(device, view_.dtype, view_.shape);
  // A tensor with gaps goes through the host, which can pick elements. So does a tensor on another kind of device.
  const bool direct = is_contiguous(view_) && (!from_gpu || view_.device.kind == device.kind);
  const Tensor source = direct ? *this : from_gpu ? to_host(view_) : copy(view_, view_.dtype);
  kind.copy_and_wait(device.index, result.data(), source.data(), byte_count(view_.dtype, view_.shape));
  return result;
}

}  // namespace heddle
