// Keys and values of bf16 as AMX multiplies them (brick_products-inl.h). A brick is the right operand of one
// instruction: 32 steps of a sum for 16 columns, as 16 rows of 16 pairs, 1 KiB. Queries times keys sum over dimensions
// and values over keys, so a brick of keys has 16 keys of 32 dimensions, one of values 32 keys of 16 dimensions:
//   K  [keys / 16][dims / 32][brick]      V  [keys / 32][dims / 16][brick]
// keys rounded up to plan::kPanel; numbers past the last key or dimension are 0.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICKS_INL_H_
#undef HEDDLE_CPU_BRICKS_INL_H_
#else
#define HEDDLE_CPU_BRICKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "families/cpu/matrix_registers-inl.h"
#include "families/cpu/target_data.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// The first `count` of 32 elements, and 0 after them.
HWY_INLINE __m512i LoadElements(const std::uint16_t* from, std::int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
}

/// Rows of 16 words to columns, which stand `stride` words apart.
HWY_INLINE void TransposeWords(const __m512i (&in)[16], std::uint32_t* to, std::int64_t stride = 16) {
  __m512i a[16], b[16];
  HWY_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
  }
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  // b[4 g + c]: columns c, c + 4, c + 8, c + 12 of rows 4 g to 4 g + 3, a quarter each.
  HWY_UNROLL(4)
  for (int c = 0; c < 4; ++c) {
    const __m512i low_even = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88),
                  low_odd = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
    const __m512i high_even = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88),
                  high_odd = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    _mm512_store_si512(to + c * stride, _mm512_shuffle_i32x4(low_even, high_even, 0x88));
    _mm512_store_si512(to + (c + 4) * stride, _mm512_shuffle_i32x4(low_odd, high_odd, 0x88));
    _mm512_store_si512(to + (c + 8) * stride, _mm512_shuffle_i32x4(low_even, high_even, 0xdd));
    _mm512_store_si512(to + (c + 12) * stride, _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd));
  }
}

/// A row on its way into bricks; past the last one, all of its elements are 0.
struct PackedRow {
  const std::uint16_t* data;
  std::int64_t count;
  const std::uint16_t* rest = nullptr;  // the columns behind these, if they stand apart
  std::int64_t rest_count = 0;

  PackedRow(const PackBricks& pack, std::int64_t row)
      : data(static_cast<const std::uint16_t*>(pack.from.data)),
        count(row < pack.end ? pack.dim - pack.rest.columns : 0) {
    if (count == 0) return;
    data += pack.from.offset(row);
    if (pack.rest.columns == 0) return;
    rest = static_cast<const std::uint16_t*>(pack.rest.rows.data) + pack.rest.rows.offset(row);
    rest_count = pack.rest.columns;
  }
  /// 32 elements from dimension `dim` on; 0 past the row's end.
  HWY_INLINE __m512i load(std::int64_t dim) const {
    if (rest_count > 0 && dim + kBrickDepth > count) return load_rest(dim);
    return count <= dim ? _mm512_setzero_si512() : LoadElements(data + dim, count - dim);
  }

 private:
  __m512i load_rest(std::int64_t dim) const {
    alignas(64) std::uint16_t both[kBrickDepth] = {};
    const std::int64_t end = std::min(dim + kBrickDepth, count + rest_count);
    for (std::int64_t i = dim; i < end; ++i) both[i - dim] = i < count ? data[i] : rest[i - count];
    return _mm512_load_si512(both);
  }
};

/// A row of whole bricks that stands alone.
struct WholeRow {
  const std::uint16_t* data;

  WholeRow(const PackBricks& pack, std::int64_t row)
      : data(static_cast<const std::uint16_t*>(pack.from.data) + row * pack.from.stride) {}
  HWY_INLINE __m512i load(std::int64_t dim) const { return _mm512_loadu_si512(data + dim); }
};
/// Whether rows before the last one are such rows.
inline bool AreWhole(const PackBricks& pack) {
  return pack.from.pages.table == nullptr && pack.rest.columns == 0 && pack.dim % kBrickDepth == 0;
}

/// 16 keys from `key` on.
template <class Row>
HWY_INLINE void PackKeys16(const PackBricks& pack, std::int64_t key, std::int64_t steps) {
  const auto row = [&](std::int64_t i) { return Row(pack, key + i); };
  const Row from[16] = {row(0), row(1), row(2),  row(3),  row(4),  row(5),  row(6),  row(7),
                        row(8), row(9), row(10), row(11), row(12), row(13), row(14), row(15)};
  for (std::int64_t step = 0; step < steps; ++step) {
    __m512i rows[16];
    HWY_UNROLL(16)
    for (int i = 0; i < 16; ++i) rows[i] = from[i].load(step * kBrickDepth);
    TransposeWords(rows,
                   reinterpret_cast<std::uint32_t*>(pack.bricks + (key / kBrickColumns * steps + step) * kBrickBytes));
  }
}
inline void PackKeyBricks(const PackBricks& pack) {
  const std::int64_t steps = plan::round_up(pack.dim, kBrickDepth) / kBrickDepth;
  const std::int64_t end = plan::round_up(pack.end, plan::kPanel);
  const bool whole = AreWhole(pack);
  for (std::int64_t key = pack.begin; key < end; key += kBrickColumns) {
    whole&& key + kBrickColumns <= pack.end ? PackKeys16<WholeRow>(pack, key, steps)
                                            : PackKeys16<PackedRow>(pack, key, steps);
  }
}

/// Elements a0 b0 a1 b1 ... of 16 dimensions, and of the 16 after them.
struct Pairs {
  __m512i low, high;
};
HWY_INLINE Pairs Interleave(__m512i a, __m512i b) {
  alignas(64) static constexpr std::uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  return {_mm512_permutex2var_epi16(a, low, b), _mm512_permutex2var_epi16(a, high, b)};
}

/// A panel of values from `panel` on. True when one of them is NaN or infinite.
template <class Row>
HWY_INLINE bool PackValuePanel(const PackBricks& pack, std::int64_t panel, std::int64_t columns) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 non_finite = 0;
  for (std::int64_t key = panel; key < panel + plan::kPanel; key += 2) {
    std::byte* row = pack.bricks + key / kBrickDepth * columns * kBrickBytes + key % kBrickDepth / 2 * 64;
    const Row even(pack, key), odd(pack, key + 1);
    for (std::int64_t column = 0; column < columns; column += 2) {
      const __m512i a = even.load(column * kBrickColumns), b = odd.load(column * kBrickColumns);
      non_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(a, exponent), exponent) |
                    _mm512_cmpeq_epi16_mask(_mm512_and_si512(b, exponent), exponent);
      const Pairs pairs = Interleave(a, b);
      _mm512_store_si512(row + column * kBrickBytes, pairs.low);
      if (column + 1 < columns) _mm512_store_si512(row + (column + 1) * kBrickBytes, pairs.high);
    }
  }
  return non_finite != 0;
}
inline void PackValueBricks(const PackBricks& pack) {
  const std::int64_t columns = plan::round_up(pack.dim, kBrickColumns) / kBrickColumns;
  const bool whole = AreWhole(pack);
  for (std::int64_t panel = pack.begin; panel < pack.end; panel += plan::kPanel) {
    const bool found = whole && panel + plan::kPanel <= pack.end ? PackValuePanel<WholeRow>(pack, panel, columns)
                                                                 : PackValuePanel<PackedRow>(pack, panel, columns);
    pack.flags[panel / plan::kPanel] = found ? 1 : 0;
  }
}

inline void PackRowsTwoWays(const PackTwoWays& pack) {
  const PackBricks source = {.from = pack.from, .begin = pack.begin, .end = pack.end, .dim = pack.dim};
  const std::int64_t stride = plan::round_up(pack.dim, kBrickDepth), columns = plan::round_up(pack.dim, kBrickColumns);
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  for (std::int64_t first = pack.begin; first < pack.end; first += plan::kUnitRows) {
    std::uint16_t* to = pack.to.columns + first * columns;
    __mmask32 non_finite = 0;
    for (std::int64_t dim = 0; dim < pack.dim; dim += kBrickDepth) {
      __m512i low[16], high[16];
      for (int i = 0; i < 16; ++i) {
        const std::int64_t row = first + 2 * i;
        const __m512i a = PackedRow(source, row).load(dim), b = PackedRow(source, row + 1).load(dim);
        non_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(a, exponent), exponent) |
                      _mm512_cmpeq_epi16_mask(_mm512_and_si512(b, exponent), exponent);
        _mm512_store_si512(pack.to.rows + row * stride + dim, a);
        _mm512_store_si512(pack.to.rows + (row + 1) * stride + dim, b);
        const Pairs pairs = Interleave(a, b);
        low[i] = pairs.low, high[i] = pairs.high;
      }
      const auto transpose = [&](const __m512i(&rows)[16], std::int64_t column) {
        TransposeWords(rows, reinterpret_cast<std::uint32_t*>(to + column * plan::kUnitRows));
      };
      transpose(low, dim);
      if (dim + kBrickColumns < columns) transpose(high, dim + kBrickColumns);
    }
    std::uint8_t& flag = pack.flags[first / plan::kPanel];
    flag = (first % plan::kPanel != 0 && flag != 0) || non_finite != 0 ? 1 : 0;
  }
}

/// Products of bf16 may leave the range of f32.
inline double DotOfBf16(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count) {
  __m512d sums[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd()};
  const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  const auto add = [&](__m512i x, __m512i y, __m512d* sum) HWY_ATTR {
    const auto half = [](__m512i words, int which) HWY_ATTR {
      const __m256i part = which == 0 ? _mm512_castsi512_si256(words) : _mm512_extracti64x4_epi64(words, 1);
      return _mm512_cvtps_pd(_mm256_castsi256_ps(part));
    };
    sum[0] = _mm512_fmadd_pd(half(x, 0), half(y, 0), sum[0]);
    sum[1] = _mm512_fmadd_pd(half(x, 1), half(y, 1), sum[1]);
  };
  for (std::int64_t i = 0; i < count; i += 32) {
    const __m512i x = LoadElements(a + i, count - i), y = LoadElements(b + i, count - i);
    add(_mm512_slli_epi32(x, 16), _mm512_slli_epi32(y, 16), sums);
    add(_mm512_and_si512(x, odd), _mm512_and_si512(y, odd), sums + 2);
  }
  return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_add_pd(sums[0], sums[1]), _mm512_add_pd(sums[2], sums[3])));
}

}  // namespace detail

inline void PackIntoBricks(const PackBricks& pack) {
  pack.flags != nullptr ? detail::PackValueBricks(pack) : detail::PackKeyBricks(pack);
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
