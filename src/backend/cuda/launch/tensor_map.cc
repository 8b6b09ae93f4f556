#include "backend/cuda/launch/tensor_map.h"

#include <fmt/format.h>

#include <cstdint>

#include "heddle/error.h"
#include "shared/forward_sm90.h"

namespace heddle::cuda {

CUtensorMap tensor_map(const ConstTensorView& tensor, const void* address, int box_rows) {
  constexpr std::uint32_t kRank = 4;
  constexpr std::uint64_t kElement = 2;
  // Innermost first: column, row, head, batch.
  const std::uint64_t extents[kRank] = {
      static_cast<std::uint64_t>(tensor.shape[3]), static_cast<std::uint64_t>(tensor.shape[2]),
      static_cast<std::uint64_t>(tensor.shape[1]), static_cast<std::uint64_t>(tensor.shape[0])};
  // The stride of an axis with one element says nothing, and TMA must be told something that it accepts.
  std::uint64_t strides[kRank - 1];
  std::uint64_t packed = (extents[0] * kElement + 15) / 16 * 16;
  for (std::uint32_t i = 0; i < kRank - 1; ++i) {
    strides[i] =
        extents[i + 1] == 1 ? packed : static_cast<std::uint64_t>(tensor.strides[2 - static_cast<int>(i)]) * kElement;
    packed = 16;
  }
  const std::uint32_t box[kRank] = {shared::kPanelColumns, static_cast<std::uint32_t>(box_rows), 1, 1};
  const std::uint32_t element_strides[kRank] = {1, 1, 1, 1};
  const CUtensorMapDataType type =
      tensor.dtype == DType::f16 ? CUtensorMapDataType::float16 : CUtensorMapDataType::bfloat16;
  CUtensorMap map;
  check(driver().TensorMapEncodeTiled(&map, type, kRank, const_cast<void*>(address), extents, strides, box,
                                      element_strides, CUtensorMapInterleave::none, CUtensorMapSwizzle::bytes128,
                                      CUtensorMapL2promotion::bytes128, CUtensorMapFloatOOBfill::zeros),
        "describing a tensor to TMA");
  return map;
}

void check_address(std::string_view name, const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 == 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is at {}; TMA takes an address that 16 divides (copy it, or slice it elsewhere)", name,
                          fmt::ptr(address)));
}

}  // namespace heddle::cuda
