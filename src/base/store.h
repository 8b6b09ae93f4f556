// Row-major numbers to a tensor of any strides and floating dtype, each rounded once.
#pragma once

#include "heddle/tensor.h"

namespace heddle::base {

/// from: to.count() numbers. `to` is in CPU memory.
void store_row_major(const double* from, const TensorView& to);
void store_row_major(const float* from, const TensorView& to);

}  // namespace heddle::base
