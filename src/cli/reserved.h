// Tensors that have an address and no memory: to plan for what this machine could not hold.
#pragma once

#include <cstdint>

#include "heddle/tensor.h"

namespace heddle::cli {

/// Address space for a tensor of that shape; whoever reads or writes an element ends the process. Throws Error
/// out_of_memory, with the bytes, if the address space has no such room.
Tensor reserved(DType dtype, const Dims& shape);

/// Bytes of memory of this machine.
std::int64_t machine_memory();

}  // namespace heddle::cli
