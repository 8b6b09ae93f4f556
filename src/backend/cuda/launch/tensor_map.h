// TMA's descriptors of attention tensors.
#pragma once

#include <string_view>

#include "backend/cuda/driver/driver.h"
#include "heddle/tensor.h"

namespace heddle::cuda {

/// A map of a tensor [batch, heads, rows, head_dim] of 2-byte elements, in boxes of `box_rows` rows and 64 columns that
/// land in the 128-byte swizzle. Only the address may change later (TensorMapReplaceAddress). Strides were accepted by
/// the planner; the address is not looked at. A context must be current.
CUtensorMap tensor_map(const ConstTensorView& tensor, const void* address, int box_rows);

/// Throws Error(invalid_argument) unless 16 divides the address.
void check_address(std::string_view name, const void* address);

}  // namespace heddle::cuda
