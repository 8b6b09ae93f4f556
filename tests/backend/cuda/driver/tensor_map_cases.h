// Tensor maps that the driver takes and those that it refuses: a GPU's and the fake alike.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda/driver/cuda_objects.h"

namespace heddle::cuda {

struct TensorMapCase {
  const char* name;
  bool taken;
  std::uint32_t rank = 4;
  std::uint64_t address = 0;  // behind a multiple of 256
  std::uint64_t extents[5] = {128, 150, 4, 2, 1};
  std::uint64_t strides[4] = {256, 38400, 153600, 16};
  std::uint32_t box[5] = {64, 64, 1, 1, 1};
  std::uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  CUtensorMapSwizzle swizzle = CUtensorMapSwizzle::bytes128;
};

inline constexpr std::uint64_t kLargestExtent = std::uint64_t{1} << 32, kStrideEnd = std::uint64_t{1} << 40;
inline constexpr TensorMapCase kTensorMapCases[] = {
    {.name = "as it should be", .taken = true},
    {.name = "rank 0", .taken = false, .rank = 0},
    {.name = "rank 1", .taken = true, .rank = 1},
    {.name = "rank 5", .taken = true, .rank = 5},
    {.name = "rank 6", .taken = false, .rank = 6},
    {.name = "an address that 8 divides", .taken = false, .address = 8},
    {.name = "an address that 16 divides", .taken = true, .address = 16},
    {.name = "no rows", .taken = false, .extents = {128, 0, 4, 2}},
    {.name = "the most rows", .taken = true, .extents = {128, kLargestExtent, 4, 2}},
    {.name = "more rows", .taken = false, .extents = {128, kLargestExtent + 1, 4, 2}},
    {.name = "a step that 8 divides", .taken = false, .strides = {264, 38400, 153600}},
    {.name = "a step of 0", .taken = true, .strides = {0, 38400, 153600}},
    {.name = "steps that fall", .taken = true, .strides = {1024, 256, 153600}},
    {.name = "the longest step", .taken = true, .strides = {256, kStrideEnd - 16, 153600}},
    {.name = "a longer step", .taken = false, .strides = {256, kStrideEnd, 153600}},
    {.name = "an empty box", .taken = false, .box = {64, 0, 1, 1}},
    {.name = "the largest box", .taken = true, .box = {64, 256, 1, 1}},
    {.name = "a larger box", .taken = false, .box = {64, 257, 1, 1}},
    {.name = "a box of 24 bytes a row", .taken = false, .box = {12, 64, 1, 1}},
    {.name = "a box wider than the swizzle", .taken = false, .box = {128, 64, 1, 1}},
    {.name = "a narrower swizzle", .taken = false, .swizzle = CUtensorMapSwizzle::bytes64},
    {.name = "a wide box, no swizzle", .taken = true, .box = {128, 64, 1, 1}, .swizzle = CUtensorMapSwizzle::none},
    {.name = "an element stride of 0", .taken = false, .element_strides = {1, 0, 1, 1}},
    {.name = "an element stride of 8", .taken = true, .element_strides = {1, 8, 1, 1}},
    {.name = "an element stride of 9", .taken = false, .element_strides = {1, 9, 1, 1}},
};

/// The cases in which the driver answers otherwise, a line each.
inline std::string tensor_map_surprises() {
  const DeviceMemory memory(0, 4096);
  const ContextScope scope(0);
  std::string surprises;
  for (const TensorMapCase& c : kTensorMapCases) {
    CUtensorMap map{};
    const CUresult result = driver().TensorMapEncodeTiled(
        &map, CUtensorMapDataType::bfloat16, c.rank, static_cast<char*>(memory.data()) + c.address, c.extents,
        c.strides, c.box, c.element_strides, CUtensorMapInterleave::none, c.swizzle, CUtensorMapL2promotion::bytes128,
        CUtensorMapFloatOOBfill::zeros);
    if ((result == CUDA_SUCCESS) != c.taken) surprises += std::string(c.name) + "\n";
  }
  return surprises;
}

}  // namespace heddle::cuda
