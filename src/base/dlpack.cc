// DLPack import and export: the same translation for both versions of the ABI.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>

#include "base/dlpack_abi.h"
#include "heddle/error.h"
#include "heddle/tensor.h"

namespace heddle {
namespace {

struct TypeRow {
  std::uint8_t code;
  std::uint8_t bits;
};

/// In the order of DType.
constexpr std::array<TypeRow, kDTypeCount> kTypes{{
    {base::kDLFloat, 64},
    {base::kDLFloat, 32},
    {base::kDLFloat, 16},
    {base::kDLBfloat, 16},
    {base::kDLFloat8E4m3fn, 8},
    {base::kDLFloat8E5m2, 8},
    {base::kDLInt, 64},
    {base::kDLInt, 32},
    {base::kDLInt, 16},
    {base::kDLInt, 8},
    {base::kDLUInt, 64},
    {base::kDLUInt, 32},
    {base::kDLUInt, 16},
    {base::kDLUInt, 8},
    {base::kDLBool, 8},
}};

Error refuse(ErrorCode code, const std::string& what) { return {code, fmt::format("DLPack tensor: {}", what)}; }

DType import_dtype(DLDataType type) {
  for (std::size_t i = 0; type.lanes == 1 && i < kTypes.size(); ++i) {
    if (kTypes[i].code == type.code && kTypes[i].bits == type.bits) return static_cast<DType>(i);
  }
  throw refuse(ErrorCode::unsupported,
               fmt::format("element type is code {}, {} bits, {} lanes; accepted are one lane of float 64, 32 or 16, "
                           "bfloat 16, float8_e4m3fn, float8_e5m2, int and uint 64, 32, 16 or 8, and bool 8",
                           type.code, type.bits, type.lanes));
}

/// Pinned host memory is memory of the CPU; managed memory is named by the GPU that it was made for.
Device import_device(DLDevice device) {
  switch (device.device_type) {
    case base::kDLCpu:
    case base::kDLCudaHost:
    case base::kDLRocmHost:
      return {};
    case base::kDLCuda:
    case base::kDLCudaManaged:
      return {DeviceKind::cuda, device.device_id};
    case base::kDLRocm:
      return {DeviceKind::rocm, device.device_id};
    default:
      throw refuse(ErrorCode::unsupported,
                   fmt::format("device type is {}; accepted are CPU (1), CUDA (2, 3, 13) and ROCm (10, 11)",
                               device.device_type));
  }
}

TensorView import_view(const DLTensor& tensor) {
  const DType dtype = import_dtype(tensor.dtype);
  const Device device = import_device(tensor.device);
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    throw refuse(ErrorCode::unsupported, fmt::format("rank is {}; accepted are 0 to {}", tensor.ndim, kMaxRank));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) throw refuse(ErrorCode::invalid_argument, "shape is null");
  const auto rank = static_cast<std::size_t>(tensor.ndim);
  const Dims shape(std::span<const std::int64_t>(tensor.shape, rank));
  const bool empty = element_count(shape) == 0;
  if (tensor.data == nullptr && !empty) {
    throw refuse(ErrorCode::invalid_argument, fmt::format("data is null, but the shape is {}", to_string(shape)));
  }
  // An empty tensor's data may be null, which must not be moved.
  void* data = empty ? tensor.data : static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  const auto size = static_cast<std::uintptr_t>(size_of(dtype));
  if (reinterpret_cast<std::uintptr_t>(data) % size != 0) {
    throw refuse(ErrorCode::unsupported, fmt::format("data is not aligned to its elements of {} bytes", size));
  }
  if (tensor.strides == nullptr || rank == 0) return {data, dtype, shape, device};
  return {data, dtype, shape, Dims(std::span<const std::int64_t>(tensor.strides, rank)), device};
}

/// Calls a producer's deleter in the end. It is made empty: a tensor whose import fails stays the caller's.
template <class Managed>
struct Imported {
  Managed* managed = nullptr;

  Imported() = default;
  ~Imported() {
    if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  }
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;
};

template <class Managed>
Tensor import_managed(Managed* managed) {
  const TensorView view = import_view(managed->dl_tensor);
  auto owner = std::make_shared<Imported<Managed>>();
  owner->managed = managed;
  return Tensor::adopt(view, std::move(owner));
}

DLDevice export_device(Device device) {
  switch (device.kind) {
    case DeviceKind::cuda:
      return {base::kDLCuda, device.index};
    case DeviceKind::rocm:
      return {base::kDLRocm, device.index};
    case DeviceKind::cpu:
      break;
  }
  return {base::kDLCpu, device.index};
}

/// Storage that an exported tensor's pointers refer to; it lives until the deleter runs.
template <class Managed>
struct Exported {
  Managed managed{};
  Dims shape;
  Dims strides;
  std::shared_ptr<void> owner;
};

template <class Managed>
Managed* export_managed(const TensorView& view, const std::shared_ptr<void>& owner) {
  auto* exported = new Exported<Managed>{{}, view.shape, view.strides, owner};
  Managed& managed = exported->managed;
  const TypeRow type = kTypes[static_cast<std::size_t>(view.dtype)];
  managed.dl_tensor = {view.data,
                       export_device(view.device),
                       view.rank(),
                       {type.code, type.bits, 1},
                       &exported->shape[0],
                       &exported->strides[0],
                       0};
  managed.manager_ctx = exported;
  managed.deleter = [](Managed* self) { delete static_cast<Exported<Managed>*>(self->manager_ctx); };
  return &managed;
}

}  // namespace

Tensor Tensor::from_dlpack(DLManagedTensor* tensor) {
  if (tensor == nullptr) throw refuse(ErrorCode::invalid_argument, "the pointer is null");
  return import_managed(tensor);
}

Tensor Tensor::from_dlpack(DLManagedTensorVersioned* tensor) {
  if (tensor == nullptr) throw refuse(ErrorCode::invalid_argument, "the pointer is null");
  if (tensor->version.major != base::kDLPackVersion.major) {
    throw refuse(ErrorCode::unsupported, fmt::format("its version is {}.{}; accepted is {}.x", tensor->version.major,
                                                     tensor->version.minor, base::kDLPackVersion.major));
  }
  return import_managed(tensor);
}

DLManagedTensor* Tensor::to_dlpack() const { return export_managed<DLManagedTensor>(view_, owner_); }

DLManagedTensorVersioned* Tensor::to_dlpack_versioned() const {
  DLManagedTensorVersioned* managed = export_managed<DLManagedTensorVersioned>(view_, owner_);
  managed->version = base::kDLPackVersion;
  managed->flags = 0;
  return managed;
}

}  // namespace heddle
