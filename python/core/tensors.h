// Tensors between Python and the library: whatever speaks DLPack or the buffer protocol becomes a view, without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "foreign_array.h"
#include "heddle/tensor.h"

namespace heddle::python {

namespace nb = nanobind;
using Array = WritableArray;
using ReadOnly = ReadOnlyArray;
using Given = std::optional<ReadOnly>;

/// The element type, "i32", of what Python holds. Throws unsupported for one that the library does not have.
DType dtype_of(const nb::dlpack::dtype& dtype);
/// The inverse.
nb::dlpack::dtype dlpack_of(DType dtype);

/// A view of the array's memory, which the caller keeps alive. `name` stands in errors.
TensorView view_of(const Array& array, const char* name);
/// The same for memory that is not written. Read-only arrays are taken.
ConstTensorView const_view_of(const ReadOnly& array, const char* name);
std::optional<ConstTensorView> given_view(const Given& array, const char* name);

/// A NumPy array that shares the tensor's memory and keeps it alive. bf16, e4m3 and e5m2, which NumPy does not have,
/// become the same bits as u16 or u8.
nb::object to_numpy(const Tensor& tensor);

}  // namespace heddle::python
