// Tensors of rows whose elements a kernel moves eight at a time (kernels/common/around/eight_columns_access.cuh).
#pragma once

#include <cstdint>

#include "heddle/tensor.h"

namespace heddle::gpu {

/// Eight columns of every row [.., .., row, column] lie at a multiple of what a thread moves at once, and none is left
/// over.
bool moves_eight_columns(const ConstTensorView& rows);

/// Threads that share a row: a power of two, at most 32.
int lanes_of_row(std::int64_t columns);

}  // namespace heddle::gpu
