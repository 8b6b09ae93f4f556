// The rows that a tile by AMX begins and ends with: queries as left operands of products, o in bf16. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_TILE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_TILE_ROWS_INL_H_
#undef HEDDLE_CPU_BRICK_TILE_ROWS_INL_H_
#else
#define HEDDLE_CPU_BRICK_TILE_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "families/cpu/bricks-inl.h"
#include "families/cpu/cpu_forward-inl.h"
#include "families/cpu/matrix_registers-inl.h"
#include "families/cpu/target_data.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

inline constexpr std::int64_t kRegisterRows = 16;
/// Rows of queries that are further apart, in elements, are copied if a tile has more keys than that: rows far apart
/// fall into few sets of the cache. docs/notes/cpu_amx.md has the measurement.
inline constexpr std::int64_t kMostQueryStride = 256, kFewKeys = 192;

/// Rows of queries in bf16 as left operands.
struct BrickQueries {
  const std::uint16_t* rows;
  std::int64_t stride;
};

/// Rows up to whole groups of 16, with 0 past the last row and dimension.
inline BrickQueries CopyQueries(const Tile<float>& tile, const TileBuffers<float>& buffers) {
  auto* to = reinterpret_cast<std::uint16_t*>(buffers.queries);
  const std::int64_t stride = plan::round_up(tile.qk_dim, kBrickDepth);
  std::uint16_t* row = to;
  for (std::int64_t head = 0; head < tile.heads; ++head) {
    for (std::int64_t r = 0; r < tile.at.rows; ++r, row += stride) {
      const auto* from = static_cast<const std::uint16_t*>(tile.q.data) + tile.q.offset(r) + head * tile.q_head_stride;
      const ConstRows& rest = tile.q_rest.rows;
      const std::int64_t apart = tile.q_rest.columns, first = tile.qk_dim - apart;
      for (std::int64_t dim = 0; dim < stride; dim += kBrickDepth) {
        _mm512_store_si512(row + dim, dim < first ? LoadElements(from + dim, first - dim) : _mm512_setzero_si512());
      }
      if (apart == 0) continue;
      std::copy_n(static_cast<const std::uint16_t*>(rest.data) + rest.offset(r) + head * tile.q_rest_head_stride, apart,
                  row + first);
    }
  }
  std::fill(row, to + plan::round_up(tile.rows(), kRegisterRows) * stride, std::uint16_t{0});
  return {to, stride};
}

/// Where they stand, if products may read them there, else a copy.
inline BrickQueries FindQueries(const Tile<float>& tile, const TileBuffers<float>& buffers) {
  const auto* rows = static_cast<const std::uint16_t*>(tile.q.data);
  const bool whole = tile.q_rest.columns == 0 && tile.qk_dim % kBrickDepth == 0 && tile.rows() % kRegisterRows == 0;
  const bool alone = tile.heads == 1 && tile.q.pages.table == nullptr;
  // Rows that begin inside of a line of the cache would take two loads for each.
  const bool aligned = reinterpret_cast<std::uintptr_t>(rows) % 64 == 0 && tile.q.stride % kBrickDepth == 0;
  const bool close = tile.q.stride > 0 && (tile.q.stride <= kMostQueryStride || tile.at.sequence.kv_len <= kFewKeys);
  if (whole && alone && aligned && close) return {rows, tile.q.stride};
  return CopyQueries(tile, buffers);
}

/// Rows of o in bf16 by the registers' rounding, which takes 32 numbers at a time. It flushes subnormal numbers, so
/// rows that have some are rounded as others are.
template <class Registers>
struct ScaleBrickRows {
  template <class Storage>
  HEDDLE_AMX bool operator()(float* row, std::int64_t count, float factor, Storage* to) const {
    if constexpr (std::is_same_v<Storage, bf16>) {
      constexpr int kSpecial = 0xb9;  // NaN, infinite, subnormal
      const __m512 factors = _mm512_set1_ps(factor);
      __mmask16 special = 0;
      std::int64_t i = 0;
      for (; i + 32 <= count; i += 32) {
        const __m512 low = _mm512_mul_ps(_mm512_load_ps(row + i), factors);
        const __m512 high = _mm512_mul_ps(_mm512_load_ps(row + i + 16), factors);
        special |= _mm512_fpclass_ps_mask(low, kSpecial) | _mm512_fpclass_ps_mask(high, kSpecial);
        _mm512_storeu_si512(to + i, Registers::round(low, high));
      }
      if (special == 0) return i < count && ScaleRow(row + i, count - i, factor, to + i);
    }
    return ScaleRow(row, count, factor, to);
  }
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
