// Tensors: views with 64-bit strides, owning tensors, DLPack import and export.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "heddle/dtype.h"

struct DLManagedTensor;           // dlpack.h, ABI of version 0.x
struct DLManagedTensorVersioned;  // dlpack.h, ABI of version 1.x

namespace heddle {

enum class DeviceKind : std::uint8_t { cpu, cuda, rocm };
/// "CPU", "CUDA", "ROCm"
std::string_view name(DeviceKind kind);

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr int kMaxRank = 8;

/// Up to kMaxRank extents or strides, without allocation. Constructing a longer one throws invalid_argument.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values);
  explicit Dims(std::span<const std::int64_t> values);

  int size() const { return size_; }
  std::int64_t& operator[](int axis) { return values_[static_cast<std::size_t>(axis)]; }
  std::int64_t operator[](int axis) const { return values_[static_cast<std::size_t>(axis)]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  void push_back(std::int64_t value);
  bool operator==(const Dims& other) const;

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int size_ = 0;
};

/// "[2, 8, 512, 64]"
std::string to_string(const Dims& dims);
/// The product of the extents (1 for rank 0). Throws invalid_argument for a negative extent, out_of_memory when the
/// product overflows.
std::int64_t element_count(const Dims& shape);
/// Row-major strides, in elements.
Dims contiguous_strides(const Dims& shape);

/// Memory with another owner: data, element type, device, shape and strides in elements (any sign, zero to broadcast).
template <class Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::f32;
  Device device{};
  Dims shape{};
  Dims strides{};

  BasicTensorView() = default;
  BasicTensorView(Void* data_, DType dtype_, const Dims& shape_, Device device_ = {})
      : data(data_), dtype(dtype_), device(device_), shape(shape_), strides(contiguous_strides(shape_)) {}
  BasicTensorView(Void* data_, DType dtype_, const Dims& shape_, const Dims& strides_, Device device_ = {})
      : data(data_), dtype(dtype_), device(device_), shape(shape_), strides(strides_) {}
  /// A writable view is also a read-only one.
  operator BasicTensorView<const void>() const requires(!std::is_const_v<Void>) {
    return {data, dtype, shape, strides, device};
  }

  int rank() const { return shape.size(); }
  std::int64_t count() const { return element_count(shape); }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

/// Views the memory with its axes in another order: permute(bshd, {0, 2, 1, 3}) reads a [B, S, H, D] tensor as [B, H,
/// S, D].
TensorView permute(const TensorView& view, const Dims& order);
ConstTensorView permute(const ConstTensorView& view, const Dims& order);
/// The sub-range [begin, end) of one axis. Throws invalid_argument when it is not inside the axis.
TensorView slice(const TensorView& view, int axis, std::int64_t begin, std::int64_t end);
ConstTensorView slice(const ConstTensorView& view, int axis, std::int64_t begin, std::int64_t end);
/// True when the elements lie in row-major order without gaps.
bool is_contiguous(const ConstTensorView& view);

/// A tensor with shared ownership of its memory; copies share it. Memory allocated here is on the CPU, row-major,
/// 64-byte aligned.
class Tensor {
 public:
  /// An empty tensor of shape [0], which owns nothing.
  Tensor();
  /// Uninitialised elements. Throws out_of_memory when the size overflows or the allocation fails.
  static Tensor empty(DType dtype, const Dims& shape);
  static Tensor zeros(DType dtype, const Dims& shape);
  /// Uninitialised elements on that device, 256-byte aligned on a GPU. Throws unsupported for a device that does not
  /// exist, with the reason.
  static Tensor empty_on(const Device& device, DType dtype, const Dims& shape);
  /// A tensor over memory that `owner` keeps alive.
  static Tensor adopt(const TensorView& view, std::shared_ptr<void> owner);

  /// Takes over a DLPack tensor (its deleter runs when the last copy goes). Throws unsupported for an element type,
  /// device, rank, alignment or major version that heddle does not know, invalid_argument for a null pointer or a bad
  /// shape; the argument then stays the caller's. Pinned host memory counts as the CPU's. The read-only flag is not
  /// kept: the importer must make sure that such a tensor is not written.
  static Tensor from_dlpack(DLManagedTensor* tensor);
  static Tensor from_dlpack(DLManagedTensorVersioned* tensor);
  /// A DLPack tensor that shares this memory; the receiver calls its deleter.
  DLManagedTensor* to_dlpack() const;
  DLManagedTensorVersioned* to_dlpack_versioned() const;

  TensorView view() const { return view_; }
  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }

  DType dtype() const { return view_.dtype; }
  const Dims& shape() const { return view_.shape; }
  void* data() const { return view_.data; }
  std::int64_t count() const { return view_.count(); }

  /// A contiguous copy with another element type. Each element is rounded once, from its exact value, to nearest even;
  /// to an integer type it truncates and saturates, NaN gives 0; to boolean: x != 0. The same type copies the bits.
  /// Throws unsupported for memory that is not the CPU's.
  Tensor to(DType dtype) const;
  /// A contiguous copy on another device, complete when this returns. Throws as empty_on does.
  Tensor to(const Device& device) const;

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
};

/// A contiguous copy of any CPU view, with another element type as in Tensor::to.
Tensor copy(const ConstTensorView& view, DType dtype);

/// One element as a double (i64 and u64 above 2^53 round). No bounds check; the view is on the CPU.
double get_element(const ConstTensorView& view, const Dims& index);

}  // namespace heddle
