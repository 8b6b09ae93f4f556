// The bytes of a tensor, as both formats hold them.
#pragma once

#include <cstdint>
#include <string>

#include "files/byte_sink.h"
#include "files/byte_source.h"
#include "heddle/tensor.h"

namespace heddle::files {

/// Bytes of the elements that a header states, before anything of that size is allocated. Throws io, naming `who`
/// ("tensor 'q'"), when they or the strides of the shape overflow.
std::uint64_t stated_bytes(const Dims& shape, DType dtype, const ByteSource& source, const std::string& who);

/// Throws unsupported, naming `who`, when the memory is not the CPU's.
void require_cpu(const ConstTensorView& view, const std::string& who);

/// Writes the elements in row-major order.
void write_row_major(const ConstTensorView& view, ByteSink& sink);

}  // namespace heddle::files
