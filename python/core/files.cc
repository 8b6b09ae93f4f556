// Tensor files in Python.
#include "heddle/files.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "arguments.h"
#include "checks.h"
#include "tensors.h"

namespace heddle::python {
namespace {

// Paths are bytes: names of files need not be UTF-8.

using namespace nb::literals;
using Texts = std::map<std::string, std::string>;

using Tensors = nb::typed<nb::dict, nb::str, nb::any>;

nb::typed<nb::tuple, Tensors, Texts, Texts> load(const nb::bytes& path) {
  const std::string file_name(path.c_str(), path.size());
  const TensorFile file = [&] {
    const WithoutGil released;
    return load_safetensors(file_name);
  }();
  nb::dict tensors;
  for (const auto& [name, tensor] : file.tensors) tensors[name.c_str()] = to_python(tensor);
  return nb::borrow<nb::typed<nb::tuple, Tensors, Texts, Texts>>(nb::make_tuple(tensors, file.metadata, file.skipped));
}

void save(const nb::bytes& path, const std::map<std::string, ReadOnly>& arrays, const Texts& metadata) {
  TensorFile file{.tensors = {}, .metadata = metadata};
  for (const auto& [name, array] : arrays) {
    const ConstTensorView view = const_view_of(array, name.c_str());
    const TensorView read{const_cast<void*>(view.data), view.dtype, view.shape, view.strides, view.device};
    file.tensors[name] = Tensor::adopt(read, nullptr);
  }
  const std::string file_name(path.c_str(), path.size());
  const WithoutGil released;
  save_safetensors(file_name, file);
}

}  // namespace

void add_files(nb::module_& module) {
  module.def("load", &load, "path"_a);
  module.def("save", &save, "path"_a, "tensors"_a, "metadata"_a);
}

}  // namespace heddle::python
