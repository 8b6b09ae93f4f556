#include "tensors.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "heddle/error.h"

namespace heddle::python {

using namespace nb::literals;

namespace {

// dlpack.h, version 1.1; nanobind names the first six.
constexpr int kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6, kE4m3 = 10, kE5m2 = 12;
constexpr int kCpu = 1, kCuda = 2, kPinned = 3, kRocm = 10, kRocmPinned = 11, kManaged = 13;

struct Row {
  DType dtype;
  int code, bits;
};
constexpr Row kRows[] = {{DType::f64, kFloat, 64},   {DType::f32, kFloat, 32}, {DType::f16, kFloat, 16},
                         {DType::bf16, kBfloat, 16}, {DType::e4m3, kE4m3, 8},  {DType::e5m2, kE5m2, 8},
                         {DType::i64, kInt, 64},     {DType::i32, kInt, 32},   {DType::i16, kInt, 16},
                         {DType::i8, kInt, 8},       {DType::u64, kUInt, 64},  {DType::u32, kUInt, 32},
                         {DType::u16, kUInt, 16},    {DType::u8, kUInt, 8},    {DType::boolean, kBool, 8}};

DType dtype_of(const nb::dlpack::dtype& dtype, const char* name) {
  for (const Row& row : kRows) {
    if (row.code == dtype.code && row.bits == dtype.bits && dtype.lanes == 1) return row.dtype;
  }
  std::string accepted;
  for (const Row& row : kRows) accepted += (accepted.empty() ? "" : ", ") + std::string(heddle::name(row.dtype));
  const bool complex = dtype.code == kComplex;
  throw Error(ErrorCode::unsupported, std::string(name) + " has " +
                                          (complex ? "complex elements of " : "elements of ") +
                                          std::to_string(dtype.bits) + " bits (DLPack code " +
                                          std::to_string(dtype.code) + "); " + accepted + " are accepted");
}

nb::dlpack::dtype dlpack_of(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return {static_cast<std::uint8_t>(row.code), static_cast<std::uint8_t>(row.bits), 1};
  }
  throw Error(ErrorCode::internal, "an element type without a DLPack code");
}

Device device_of(int type, int index, const char* name) {
  if (type == kCpu || type == kPinned || type == kRocmPinned) return {};
  if (type == kCuda || type == kManaged) return {DeviceKind::cuda, index};
  if (type == kRocm) return {DeviceKind::rocm, index};
  throw Error(ErrorCode::unsupported, std::string(name) + " is on a device of DLPack type " + std::to_string(type) +
                                          "; CPU, CUDA and ROCm memory are accepted");
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
  return View(array.data(), dtype_of(array.dtype(), name), shape, strides,
              device_of(array.device_type(), array.device_id(), name));
}

/// The tensor's memory as an array of Framework's, which keeps it alive.
template <class Framework>
nb::any exported(const Tensor& tensor, DType dtype) {
  const TensorView view = tensor.view();
  const std::vector<std::size_t> shape(view.shape.begin(), view.shape.end());
  const std::vector<std::int64_t> strides(view.strides.begin(), view.strides.end());
  auto owner = std::make_unique<Tensor>(tensor);
  nb::capsule capsule(owner.get(), [](void* held) noexcept { delete static_cast<Tensor*>(held); });
  owner.release();
  constexpr int kTypes[] = {kCpu, kCuda, kRocm};
  nb::ndarray<Framework> array(view.data, shape.size(), shape.data(), capsule, strides.data(), dlpack_of(dtype),
                               kTypes[static_cast<int>(view.device.kind)], view.device.index);
  return nb::borrow<nb::any>(array.cast());
}

/// The unsigned integer of as many bytes.
DType bits_of(DType dtype) {
  if (dtype == DType::bf16) return DType::u16;
  return dtype == DType::e4m3 || dtype == DType::e5m2 ? DType::u8 : dtype;
}

/// The array's memory, its elements taken for those of another type of equal size.
Tensor with_bits(const Array& array, const std::string& wanted) {
  const TensorView view = view_of(array, "array");
  const DType dtype = parse_dtype(wanted);
  if (size_of(dtype) != size_of(view.dtype)) {
    throw Error(ErrorCode::invalid_argument, "array is " + std::string(name(view.dtype)) + "; an element type of " +
                                                 std::to_string(size_of(dtype)) + " bytes is accepted for " + wanted);
  }
  auto owner = std::make_shared<Array>(array);
  return Tensor::adopt({view.data, dtype, view.shape, view.strides, view.device}, std::move(owner));
}

}  // namespace

TensorView view_of(const Array& array, const char* name) { return view_from<TensorView>(array, name); }
ConstTensorView const_view_of(const ReadOnly& array, const char* name) {
  return view_from<ConstTensorView>(array, name);
}
std::optional<ConstTensorView> given_view(const Given& array, const char* name) {
  if (!array) return {};
  return const_view_of(*array, name);
}

Device device_named(const std::string& kind, int index) {
  if (kind == "cpu") return {};
  if (kind == "cuda") return {DeviceKind::cuda, index};
  if (kind == "rocm") return {DeviceKind::rocm, index};
  throw Error(ErrorCode::invalid_argument, "device is '" + kind + "'; 'cpu', 'cuda' and 'rocm' are accepted");
}

nb::any to_python(const Tensor& tensor) {
  if (tensor.view().device.kind != DeviceKind::cpu || bits_of(tensor.dtype()) != tensor.dtype())
    return nb::borrow<nb::any>(nb::cast(tensor));
  return exported<nb::numpy>(tensor, tensor.dtype());
}

Pair pair_of(const nb::object& first, const nb::object& second) {
  return nb::borrow<Pair>(nb::make_tuple(first, second));
}

void add_tensors(nb::module_& module) {
  nb::class_<Tensor>(module, "Tensor", "Memory with a shape and an element type.")
      .def_static("with_bits", &with_bits, "array"_a, "dtype"_a)
      .def_static(
          "empty",
          [](const std::string& dtype, const std::vector<std::int64_t>& shape, const std::string& device, int index) {
            return Tensor::empty_on(device_named(device, index), parse_dtype(dtype), Dims(std::span(shape)));
          },
          "dtype"_a, "shape"_a, "device"_a, "index"_a)
      .def_prop_ro("shape",
                   [](const Tensor& self) {
                     return nb::borrow<nb::typed<nb::tuple, int, nb::ellipsis>>(
                         nb::tuple(nb::cast(std::vector<std::int64_t>(self.shape().begin(), self.shape().end()))));
                   })
      .def_prop_ro("nbytes", [](const Tensor& self) { return self.count() * size_of(self.dtype()); })
      .def_prop_ro("dtype", [](const Tensor& self) { return std::string(name(self.dtype())); })
      .def_prop_ro("device",
                   [](const Tensor& self) {
                     const Device device = self.view().device;
                     constexpr const char* kKinds[] = {"cpu", "cuda", "rocm"};
                     return std::pair(kKinds[static_cast<int>(device.kind)], device.index);
                   })
      .def(
          "to", [](const Tensor& self, const std::string& dtype) { return self.to(parse_dtype(dtype)); }, "dtype"_a)
      .def(
          "on",
          [](const Tensor& self, const std::string& device, int index) { return self.to(device_named(device, index)); },
          "device"_a, "index"_a)
      .def("exported", [](const Tensor& self) { return exported<nb::array_api>(self, self.dtype()); })
      .def("numpy", [](const Tensor& self) { return exported<nb::numpy>(self, bits_of(self.dtype())); });
}

}  // namespace heddle::python
