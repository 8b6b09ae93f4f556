// The safetensors format: 8 bytes of header length (little-endian), a JSON header, the tensors' bytes.
// load_safetensors and save_safetensors are these over files.
#pragma once

#include "files/byte_sink.h"
#include "files/byte_source.h"
#include "heddle/files.h"

namespace heddle::files {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

TensorFile read_safetensors(const ByteSource& source);
/// Tensors in the order of the reference implementation: widest type first, then by name; the data begin at a multiple
/// of 8. Throws invalid_argument for a name that cannot be written, unsupported for a tensor that is not on the CPU.
void write_safetensors(const TensorFile& file, ByteSink& sink);

}  // namespace heddle::files
