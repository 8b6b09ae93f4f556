#include "tensors.h"

#include <memory>
#include <string>
#include <vector>

#include "heddle/error.h"

namespace heddle::python {
namespace {

// dlpack.h, version 1.1; nanobind names the first six.
constexpr int kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6, kE4m3 = 10, kE5m2 = 12;
constexpr int kCpu = 1, kCuda = 2, kPinned = 3, kManaged = 13;

struct Row {
  DType dtype;
  int code, bits;
};
constexpr Row kRows[] = {{DType::f64, kFloat, 64},   {DType::f32, kFloat, 32}, {DType::f16, kFloat, 16},
                         {DType::bf16, kBfloat, 16}, {DType::e4m3, kE4m3, 8},  {DType::e5m2, kE5m2, 8},
                         {DType::i64, kInt, 64},     {DType::i32, kInt, 32},   {DType::i16, kInt, 16},
                         {DType::i8, kInt, 8},       {DType::u64, kUInt, 64},  {DType::u32, kUInt, 32},
                         {DType::u16, kUInt, 16},    {DType::u8, kUInt, 8},    {DType::boolean, kBool, 8}};

Device device_of(int type, int index, const char* name) {
  if (type == kCpu || type == kPinned) return {};
  if (type == kCuda || type == kManaged) return {DeviceKind::cuda, index};
  throw Error(ErrorCode::unsupported, std::string(name) + " is on a device of DLPack type " + std::to_string(type) +
                                          "; CPU and CUDA memory are accepted");
}

template <class View, class Any>
View view_from(const Any& array, const char* name) {
  if (array.ndim() > static_cast<std::size_t>(kMaxRank)) {
    throw Error(ErrorCode::unsupported, std::string(name) + " has " + std::to_string(array.ndim()) + " axes; up to " +
                                            std::to_string(kMaxRank) + " are accepted");
  }
  Dims shape, strides;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    shape.push_back(static_cast<std::int64_t>(array.shape(axis)));
    strides.push_back(array.stride(axis));
  }
  return View(array.data(), dtype_of(array.dtype()), shape, strides,
              device_of(array.device_type(), array.device_id(), name));
}

}  // namespace

DType dtype_of(const nb::dlpack::dtype& dtype) {
  for (const Row& row : kRows) {
    if (row.code == dtype.code && row.bits == dtype.bits && dtype.lanes == 1) return row.dtype;
  }
  throw Error(ErrorCode::unsupported, "elements of DLPack code " + std::to_string(dtype.code) + " with " +
                                          std::to_string(dtype.bits) + " bits are not accepted");
}

nb::dlpack::dtype dlpack_of(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return {static_cast<std::uint8_t>(row.code), static_cast<std::uint8_t>(row.bits), 1};
  }
  throw Error(ErrorCode::internal, "an element type without a DLPack code");
}

TensorView view_of(const Array& array, const char* name) { return view_from<TensorView>(array, name); }
ConstTensorView const_view_of(const ReadOnly& array, const char* name) {
  return view_from<ConstTensorView>(array, name);
}
std::optional<ConstTensorView> given_view(const Given& array, const char* name) {
  if (!array) return {};
  return const_view_of(*array, name);
}

nb::object to_numpy(const Tensor& tensor) {
  DType dtype = tensor.dtype();
  if (dtype == DType::bf16) dtype = DType::u16;
  if (dtype == DType::e4m3 || dtype == DType::e5m2) dtype = DType::u8;
  std::vector<std::size_t> shape(tensor.shape().begin(), tensor.shape().end());
  const Dims of_view = tensor.view().strides;
  const std::vector<std::int64_t> strides(of_view.begin(), of_view.end());
  auto owner = std::make_unique<Tensor>(tensor);
  nb::capsule capsule(owner.get(), [](void* held) noexcept { delete static_cast<Tensor*>(held); });
  owner.release();
  nb::ndarray<nb::numpy> array(tensor.data(), shape.size(), shape.data(), capsule, strides.data(), dlpack_of(dtype));
  return array.cast();
}

}  // namespace heddle::python
