#include "backend/cuda/hopper/tensor_map.h"

#include <algorithm>
#include <cstdint>

#include "shared/panels.h"

namespace heddle::cuda {

namespace {

CUtensorMapDataType type_of(DType dtype) {
  if (size_of(dtype) == 1) return CUtensorMapDataType::uint8;
  if (dtype == DType::f32) return CUtensorMapDataType::float32;
  return dtype == DType::f16 ? CUtensorMapDataType::float16 : CUtensorMapDataType::bfloat16;
}

constexpr std::int64_t kPanelBytes = 128;

/// The box of one load: rows, and of each row `bytes` bytes, swizzled over these.
struct Box {
  int rows;
  std::int64_t bytes = kPanelBytes;
};
CUtensorMapSwizzle swizzle_of(const Box& box) {
  return box.bytes == 32   ? CUtensorMapSwizzle::bytes32
         : box.bytes == 64 ? CUtensorMapSwizzle::bytes64
                           : CUtensorMapSwizzle::bytes128;
}

/// Bytes from one row, head or batch to the next. The stride of an axis with one element says nothing, and TMA must be
/// told something that it accepts.
struct Steps {
  std::uint64_t row, head, batch;
};
Steps steps_of(const ConstTensorView& tensor) {
  const auto element = static_cast<std::uint64_t>(size_of(tensor.dtype));
  const auto step = [&](int axis, std::uint64_t otherwise) {
    return tensor.shape[axis] == 1 ? otherwise : static_cast<std::uint64_t>(tensor.strides[axis]) * element;
  };
  const std::uint64_t row = (static_cast<std::uint64_t>(tensor.shape[3]) * element + 15) / 16 * 16;
  return {step(2, row), step(1, 16), step(0, 16)};
}

/// Axes innermost first.
template <std::uint32_t kRank>
CUtensorMap encoded(DType dtype, std::uintptr_t address, const std::uint64_t (&extents)[kRank],
                    const std::uint64_t (&steps)[kRank - 1], const Box& of) {
  std::uint32_t box[kRank], element_strides[kRank];
  std::ranges::fill(box, 1U);
  std::ranges::fill(element_strides, 1U);
  box[0] = static_cast<std::uint32_t>(of.bytes / size_of(dtype));
  box[1] = static_cast<std::uint32_t>(of.rows);
  // A part of an object of its own, so that it is not the caller's: GCC 12 without optimisation aligns what a call
  // returns to less than the 64 bytes that the driver asks for.
  struct {
    CUtensorMap map;
  } own;
  check(driver().TensorMapEncodeTiled(&own.map, type_of(dtype), kRank, reinterpret_cast<void*>(address), extents, steps,
                                      box, element_strides, CUtensorMapInterleave::none, swizzle_of(of),
                                      CUtensorMapL2promotion::bytes128, CUtensorMapFloatOOBfill::zeros),
        "describing a tensor to TMA");
  return own.map;
}

std::uint64_t extent(const ConstTensorView& tensor, int axis) { return static_cast<std::uint64_t>(tensor.shape[axis]); }

CUtensorMap four_axes(const ConstTensorView& tensor, const void* address, const Box& box) {
  const Steps steps = steps_of(tensor);
  return encoded<4>(tensor.dtype, reinterpret_cast<std::uintptr_t>(address),
                    {extent(tensor, 3), extent(tensor, 2), extent(tensor, 1), extent(tensor, 0)},
                    {steps.row, steps.head, steps.batch}, box);
}

}  // namespace

CUtensorMap tensor_map(const ConstTensorView& tensor, const void* address, int box_rows) {
  return four_axes(tensor, address, {.rows = box_rows});
}

CUtensorMap tensor_map_before_ends(const ConstTensorView& tensor, const void* address, int box_rows,
                                   std::int64_t longest) {
  const Steps steps = steps_of(tensor);
  const auto rows = static_cast<std::uint64_t>(longest);
  // Nothing is ever read or written before the tensor, though the map begins there.
  return encoded<5>(tensor.dtype, reinterpret_cast<std::uintptr_t>(address) - rows * steps.row,
                    {extent(tensor, 3), rows, extent(tensor, 2) + 1, extent(tensor, 1), extent(tensor, 0)},
                    {steps.row, steps.row, steps.head, steps.batch}, {.rows = box_rows});
}

StreamedMaps streamed_maps(const ConstTensorView& capture, int box_rows) {
  return {four_axes(capture, capture.data, {.rows = box_rows, .bytes = kPanelBytes}),
          four_axes(capture, capture.data,
                    {.rows = box_rows, .bytes = shared::kStreamedRestColumns * size_of(capture.dtype)})};
}

}  // namespace heddle::cuda
