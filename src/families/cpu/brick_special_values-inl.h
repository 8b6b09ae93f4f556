// Values that are NaN or infinite in a tile by AMX: products leave their keys out, and the rows that attend them add
// them one by one. For AVX-512 alone.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICK_SPECIAL_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICK_SPECIAL_VALUES_INL_H_
#undef HEDDLE_CPU_BRICK_SPECIAL_VALUES_INL_H_
#else
#define HEDDLE_CPU_BRICK_SPECIAL_VALUES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "families/cpu/bricks-inl.h"
#include "families/cpu/bricks_in_place-inl.h"
#include "families/cpu/cpu_forward-inl.h"
#include "families/cpu/target_data.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// The weights of a row in bf16, which overwrite the first half of its scores.
inline std::uint16_t* WeightsOf(const TileBuffers<float>& buffers, std::int64_t row) {
  return reinterpret_cast<std::uint16_t*>(buffers.scores + row * plan::kChunk);
}

/// flags: of each kPanel packed values.
inline bool MayHoldSpecialValues(const std::uint8_t* flags, const Chunk& chunk) {
  return std::any_of(flags + chunk.first / plan::kPanel, flags + (chunk.end - 1) / plan::kPanel + 1,
                     [](std::uint8_t flag) { return flag != 0; });
}

/// Finds the columns of keys one of whose values is NaN or infinite, among all that stand in the chunk's bricks: the
/// product reads those beside the chunk, too.
inline bool FindSpecialValues(const Chunk& chunk, const std::byte* bricks, std::int64_t v_columns, ColumnSet& columns) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  const std::int64_t end = plan::round_up(chunk.end - chunk.first, kBrickDepth);
  bool any = false;
  for (std::int64_t column = 0; column < end; column += 2) {
    const std::byte* pairs = bricks + column / kBrickDepth * v_columns * kBrickBytes + column % kBrickDepth / 2 * 64;
    __mmask32 found = 0;
    for (std::int64_t i = 0; i < v_columns; ++i) {
      const __m512i bits = _mm512_load_si512(pairs + i * kBrickBytes);
      found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(bits, exponent), exponent);
    }
    if ((found & 0x55555555U) != 0) columns.add(column);
    if ((found & 0xaaaaaaaaU) != 0) columns.add(column + 1);
    any = any || found != 0;
  }
  return any;
}

/// Scores past the chunk's columns are those of an earlier one: nothing attends there.
inline void FindAttendingRows(const Tile<float>& tile, const TileBuffers<float>& buffers, const Chunk& chunk,
                              const ColumnSet& columns) {
  for (std::int64_t r = 0; r < tile.rows(); ++r) {
    float* row = buffers.scores + r * plan::kChunk;
    std::fill(row + chunk.columns(), row + plan::round_up(chunk.columns(), kBrickDepth), kMinusInfinity<float>);
  }
  FindAttending(buffers.scores, tile.rows(), columns, buffers.attending);
}

/// Bricks of values that stand `step` bricks apart along the keys, from dimension 16 `first` on.
struct ValueBricks {
  const std::byte* data;
  std::int64_t step, first, columns;
};

/// Calls f(bricks) with copies of `steps` rows of bricks, some columns at a time, that hold 0 for the keys of
/// `columns`.
template <class F>
void ForEachCopyWithout(const ColumnSet& columns, std::int64_t steps, const ValueBricks& bricks, float* staging,
                        F&& f) {
  auto* copy = reinterpret_cast<std::byte*>(staging);
  constexpr std::int64_t kColumns = plan::kPanel / kBrickColumns;  // at a time: half of the staging
  for (std::int64_t first = 0; first < bricks.columns; first += kColumns) {
    const std::int64_t count = std::min(kColumns, bricks.columns - first);
    for (std::int64_t step = 0; step < steps; ++step) {
      std::copy_n(bricks.data + (step * bricks.step + first) * kBrickBytes, count * kBrickBytes,
                  copy + step * count * kBrickBytes);
    }
    ForEachColumn(columns.words, [&](std::int64_t key) {
      auto* elements = reinterpret_cast<std::uint16_t*>(copy + key / kBrickDepth * count * kBrickBytes);
      for (std::int64_t column = 0; column < count; ++column, elements += kBrickBytes / 2) {
        for (std::int64_t i = 0; i < 16; ++i) elements[key % kBrickDepth / 2 * 32 + i * 2 + key % 2] = 0;
      }
    });
    f(ValueBricks{copy, count, first, count});
  }
}

/// Each row adds the values of the special keys that it attends. interleaved: O's columns stand as in place.
inline void AddAttendedValues(const Tile<float>& tile, const TileBuffers<float>& buffers, const Chunk& chunk,
                              bool interleaved) {
  float* value = buffers.staging;
  for (std::int64_t r = 0; r < tile.rows(); ++r) {
    float* row = buffers.accumulators + r * buffers.o_stride;
    ForEachColumn(buffers.attending + r * kColumnWords, [&](std::int64_t column) {
      LoadRow(tile.v, chunk.first + column, 0, tile.v_dim, value);
      const float p = std::bit_cast<float>(static_cast<std::uint32_t>(WeightsOf(buffers, r)[column]) << 16);
      for (std::int64_t i = 0; i < tile.v_dim; ++i) row[interleaved ? InterleavedColumn(i) : i] += p * value[i];
    });
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
