// TMA's descriptors of attention tensors.
#pragma once

#include <cstdint>

#include "backend/cuda/driver/driver.h"
#include "heddle/tensor.h"

namespace heddle::cuda {

/// A map of a tensor [batch, heads, rows, head_dim] of 1- or 2-byte elements, in boxes of `box_rows` rows and 128 bytes
/// of columns that land in the 128-byte swizzle. Only the address may change later (TensorMapReplaceAddress). Strides
/// were accepted by the planner; the address is not looked at. A context must be current.
CUtensorMap tensor_map(const ConstTensorView& tensor, const void* address, int box_rows);

/// A map that ends where a sequence does: five axes, of which the second counts from `longest` rows before the row that
/// the third names on, and has `longest` of them. Rows of a box past that are read as zeros and not written; a sequence
/// of n <= longest rows that ends before row e of the tensor has its row i at (longest - n + i, e). The tensor's batch
/// stride may be 0.
CUtensorMap tensor_map_before_ends(const ConstTensorView& tensor, const void* address, int box_rows,
                                   std::int64_t longest);

/// Maps of a streamed capture, as its tiles are found in it (plan/mods/streamed_read.h): in boxes of `box_rows` rows and
/// 128 bytes, or 16 columns in the swizzle of their width.
struct StreamedMaps {
  CUtensorMap panels, rest;
};
StreamedMaps streamed_maps(const ConstTensorView& capture, int box_rows);

}  // namespace heddle::cuda
