// Where a tile of elements lies among the scores.
#pragma once

#include <cstdint>

#include "heddle/block_mask.h"

namespace heddle::cpu {

/// Rows and columns of a tile of elements. Tiles have at most kMaxColumns columns; any number of rows.
inline constexpr int kMaxColumns = 128;

/// Where a tile lies. Row r is query q_first + r of its sequence, column c key kv_first + c (both counted from the
/// sequence's own start; the evaluator adds q_start, kv_start, q_begin and kv_begin itself for the leaves that have
/// them).
struct TilePosition {
  std::int32_t b = 0, h = 0;
  Sequence sequence;
  std::int64_t q_first = 0, kv_first = 0;
  int rows = 0, columns = 0;
};

}  // namespace heddle::cpu
