// Tensors between Python and the library: whatever speaks DLPack or the buffer protocol becomes a view, without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "foreign_array.h"
#include "heddle/tensor.h"

namespace heddle::python {

namespace nb = nanobind;
using Array = WritableArray;
using ReadOnly = ReadOnlyArray;
using Given = std::optional<ReadOnly>;

/// A view of the array's memory, which the caller keeps alive. `name` stands in errors.
TensorView view_of(const Array& array, const char* name);
/// A view of memory that is not written. Read-only arrays are taken.
ConstTensorView const_view_of(const ReadOnly& array, const char* name);
std::optional<ConstTensorView> given_view(const Given& array, const char* name);

/// "cpu", "cuda" or "rocm". Throws invalid_argument for another kind.
Device device_named(const std::string& kind, int index);

/// A result for Python: a NumPy array that shares the tensor's memory and keeps it alive, or heddle._core.Tensor for
/// memory of a GPU and for bf16, e4m3 and e5m2, which NumPy does not have.
nb::any to_python(const Tensor& tensor);
using Pair = nb::typed<nb::tuple, nb::any, nb::any>;
Pair pair_of(const nb::object& first, const nb::object& second);

void add_tensors(nb::module_& module);

}  // namespace heddle::python
