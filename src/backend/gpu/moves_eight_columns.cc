#include "backend/gpu/moves_eight_columns.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "shared/eight_columns.h"

namespace heddle::gpu {
namespace {

constexpr std::int64_t kVectorBytes = 16, kMostLanes = 32;

}  // namespace

bool moves_eight_columns(const ConstTensorView& rows) {
  const std::int64_t size = size_of(rows.dtype), bytes = std::min(kVectorBytes, size * shared::kColumns);
  const auto divided = [&](std::int64_t x) { return x % bytes == 0; };
  for (int axis = 0; axis < 3; ++axis) {
    if (rows.shape[axis] > 1 && !divided(rows.strides[axis] * size)) return false;
  }
  return rows.shape[3] % shared::kColumns == 0 &&
         divided(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows.data) % kVectorBytes));
}

int lanes_of_row(std::int64_t columns) {
  const std::int64_t vectors = (columns + shared::kColumns - 1) / shared::kColumns;
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(vectors, 1, kMostLanes))));
}

}  // namespace heddle::gpu
