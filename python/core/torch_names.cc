#include "torch_names.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::python {

bool TorchNames::take(nb::handle object, ReadOnly& array) const {
  const nb::handle type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  return (type.is(types[0]) || type.is(types[1])) && array.take(object, true);
}

namespace {

/// Whether the elements lie in memory without gaps or overlap.
bool is_dense(const ReadOnly& array) {
  std::array<std::size_t, ReadOnly::kMaxRank> order{};
  std::size_t axes = 0;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    if (array.shape(axis) == 0) return false;
    if (array.shape(axis) > 1) order[axes++] = axis;
  }
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(axes),
            [&](std::size_t x, std::size_t y) { return array.stride(x) < array.stride(y); });
  std::int64_t step = 1;
  for (std::size_t i = 0; i < axes; ++i) {
    if (array.stride(order[i]) != step) return false;
    step *= static_cast<std::int64_t>(array.shape(order[i]));
  }
  return true;
}

template <class Extent>
nb::object tuple_of(std::size_t count, const Extent& extent) {
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t axis = 0; axis < count; ++axis) {
    PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(axis), PyLong_FromLongLong(extent(axis)));
  }
  return made;
}

}  // namespace

bool TorchNames::make_like(nb::handle query, const ReadOnly& given, nb::object& made, Array& array) const {
  static PyObject* const dtype = PyUnicode_InternFromString("dtype");
  const nb::object& make = strided[given.device_type() == kCuda ? 1 : 0];
  if (make.is_valid() && !make.is_none() && is_dense(given)) {
    const nb::object shape = tuple_of(given.ndim(), [&](std::size_t axis) { return std::int64_t(given.shape(axis)); });
    const nb::object strides = tuple_of(given.ndim(), [&](std::size_t axis) { return given.stride(axis); });
    const nb::object type = nb::steal(PyObject_GetAttr(query.ptr(), dtype));
    PyObject* arguments[] = {shape.ptr(), strides.ptr(), type.ptr()};
    made = nb::steal(PyObject_Vectorcall(make.ptr(), arguments, 3, nullptr));
    if (!made.is_valid()) throw nb::python_error();
    if (array.take_new(made) && array.device_id() == given.device_id())
      return true;  // else another GPU is the current one
  }
  made = empty_like(query);
  return array.take_new(made);
}

bool TorchNames::set_place(const ReadOnly& query, Arguments& arguments) const {
  if (query.device_type() == kCuda) return set_stream(query, arguments.stream);
  arguments.threads = nb::cast<int>(threads());
  return true;
}

bool TorchNames::set_stream(const ReadOnly& query, std::uintptr_t& number) const {
  const nb::object current = stream(query.device_id());
  if (current.is_none()) return false;
  number = nb::cast<std::uintptr_t>(current);
  return true;
}

}  // namespace heddle::python
