// NumPy's .npy format: magic, version, header length, a Python literal, the elements. load_npy and save_npy are these
// over files.
#pragma once

#include <string>
#include <string_view>

#include "files/byte_sink.h"
#include "files/byte_source.h"
#include "heddle/tensor.h"

namespace heddle::files {

/// The header's dictionary.
struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  Dims shape;
};

/// Parses "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" with its padding. Throws io (through `source`,
/// which names the file) for anything else, unsupported for structured types and a rank above kMaxRank.
NpyHeader parse_npy_header(std::string_view text, const ByteSource& source);

/// Always row-major and in the machine's byte order.
Tensor read_npy(const ByteSource& source);
void write_npy(const ConstTensorView& tensor, ByteSink& sink);

}  // namespace heddle::files
