// Keys and values of bf16 that AMX multiplies where they stand, for a tile of few queries: S^T = K Q^T, so that rows of
// keys are the left operand as they are stored, and nothing but the scores is transposed. Queries become bricks once.
// Values become bricks a part of a chunk at a time, which stay in L1. Two rows of values are interleaved within blocks
// of 128 bits, which costs one instruction a vector and leaves o's columns in another order, until OrderColumns().

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BRICKS_IN_PLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BRICKS_IN_PLACE_INL_H_
#undef HEDDLE_CPU_BRICKS_IN_PLACE_INL_H_
#else
#define HEDDLE_CPU_BRICKS_IN_PLACE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "families/cpu/attend_in_place-inl.h"
#include "families/cpu/bricks-inl.h"
#include "families/cpu/chunks-inl.h"
#include "families/cpu/row_addresses-inl.h"
#include "families/cpu/target_data.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {

namespace detail {

/// Keys whose values are in bricks at a time: 16 KiB at 128 dimensions, beside what else is in L1.
inline constexpr std::int64_t kPartKeys = 64;

/// The column of a row of o, of 32 that two bricks compute, where dimension `dim` stands.
constexpr std::int64_t InterleavedColumn(std::int64_t dim) {
  return dim / 32 * 32 + dim / 4 % 2 * 16 + dim % 32 / 8 * 4 + dim % 4;
}

/// A row of o to the order of its dimensions. `columns`: a multiple of 32.
inline void OrderColumns(float* row, std::int64_t columns) {
  alignas(64) static constexpr std::int32_t kFirst[16] = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};
  const __m512i first = _mm512_load_si512(kFirst), second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (std::int64_t i = 0; i < columns; i += 32) {
    const __m512 low = _mm512_load_ps(row + i), high = _mm512_load_ps(row + i + 16);
    _mm512_store_ps(row + i, _mm512_permutex2var_ps(low, first, high));
    _mm512_store_ps(row + i + 16, _mm512_permutex2var_ps(low, second, high));
  }
}

/// The rows that one tile reads, chunk after chunk. Scratch: quad_queries has the queries' bricks, the rows of queries
/// (which are not read after start()) take keys that cannot stay where they are, `staging` transposes scores, and
/// chunk_values has the bricks of values.
template <class Registers>
class BricksInPlace {
 public:
  BricksInPlace(Registers& registers, const Tile<float>& tile, const TileBuffers<float>& buffers)
      : registers_(registers),
        tile_(tile),
        buffers_(buffers),
        k_steps_(plan::round_up(tile.qk_dim, kBrickDepth) / kBrickDepth),
        v_columns_(plan::round_up(tile.v_dim, kBrickDepth) / kBrickColumns),
        row_bricks_(plan::round_up(tile.rows(), kBrickColumns) / kBrickColumns),
        stage_(tile.k_rest.columns > 0 || tile.qk_dim % kBrickDepth != 0) {}

  /// The queries, rows of bf16 in buffers.queries, to bricks.
  void start_queries() {
    const std::int64_t stride = k_steps_ * kBrickDepth;
    PackKeyBricks(PackBricks{.from = {.data = buffers_.queries, .dtype = DType::bf16, .stride = stride},
                             .begin = 0,
                             .end = row_bricks_ * kBrickColumns,
                             .dim = stride,
                             .bricks = query_bricks(),
                             .flags = nullptr});
  }
  /// The walk stands at its first chunk, `chunk`. Rows that stand together are fetched ahead, a few lines of each page
  /// of memory. Others are not: a load of a register asks for sixteen rows at once.
  void start_walk(const Chunk& chunk) {
    enter_keys(chunk);
    ahead_ = Ahead(keys_, key_count_, true, Fetches::pages_alone);
    ahead_.fetch_lines<true>(kAheadLines);
  }
  /// The keys of `chunk` are read next, and then its values.
  void start_chunk(const Chunk& chunk) {
    FindRows(tile_.v, tile_.v_dim, chunk.first, chunk.end - chunk.first, values_);
    ahead_.then(values_, chunk.end - chunk.first);
  }
  /// The values of `chunk` are read next, and then the keys of the chunk at which `next` stands, if there is one.
  void start_values(const Chunk& chunk, const ChunkWalk& next) {
    ahead_.enter(values_, chunk.end - chunk.first);
    if (next.done()) return;
    enter_keys(next.chunk());
    ahead_.then(keys_, key_count_);
  }
  void end_chunk(const ChunkWalk& next) { ahead_.enter(keys_, next.done() ? 0 : key_count_); }

  /// S = Q K^T over the chunk's columns. `again`: its keys were fetched.
  HEDDLE_AMX void compute_scores(const Chunk& chunk, bool again) {
    const std::int64_t columns = chunk.columns(), lines = LinesOf(keys_.bytes);
    Ahead none, &ahead = again ? none : ahead_;
    Product before;
    bool odd = false, any = false;
    for (std::int64_t column = 0; column < columns; column += 2 * kBrickColumns) {
      ahead.fetch_lines<true>(2 * kBrickColumns * lines);
      Product product = {.keys = {group(column, 0), group(std::min(column + kBrickColumns, columns - 16), 1)},
                         .column = column,
                         .groups = column + kBrickColumns < columns ? 2 : 1};
      for (; product.row < row_bricks_; ++product.row, odd = !odd, any = true) {
        odd ? multiply<2>(product, any) : multiply<0>(product, any);
        if (any) transpose(before);
        before = product;
      }
    }
    if (!any) return;
    odd ? store<0>() : store<2>();
    transpose(before);
  }

  /// Where the bricks of values stand, [steps][v_columns][brick].
  std::byte* value_bricks() const { return reinterpret_cast<std::byte*>(buffers_.chunk_values); }
  std::int64_t v_columns() const { return v_columns_; }

  /// Values of the chunk's columns [first, end) to bricks, `first` a multiple of kBrickDepth; 0 beside the chunk's
  /// keys. True when one of them is NaN or infinite.
  bool pack_values(const Chunk& chunk, std::int64_t first, std::int64_t end) {
    const std::int64_t lines = LinesOf(values_.bytes), last = chunk.end - chunk.first;
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i largest = _mm512_setzero_si512();
    const auto row = [&](std::int64_t column) -> const std::uint16_t* {
      const bool in_chunk = chunk.first + column >= chunk.begin && column < last;
      return in_chunk ? values_.at<std::uint16_t>(column) : nullptr;
    };
    std::byte* to = value_bricks();
    for (std::int64_t column = first; column < end; column += 2, to += 64) {
      if (column > first && column % kBrickDepth == 0) to += (v_columns_ - 1) * kBrickBytes;
      ahead_.fetch_lines<true>(2 * lines);
      const std::uint16_t *even = row(column), *odd = row(column + 1);
      for (std::int64_t dim = 0; dim < tile_.v_dim; dim += kBrickDepth) {
        const __m512i a = even == nullptr ? _mm512_setzero_si512() : LoadElements(even + dim, tile_.v_dim - dim);
        const __m512i b = odd == nullptr ? _mm512_setzero_si512() : LoadElements(odd + dim, tile_.v_dim - dim);
        largest = _mm512_max_epu16(largest, _mm512_and_si512(a, magnitude));
        largest = _mm512_max_epu16(largest, _mm512_and_si512(b, magnitude));
        std::byte* brick = to + dim / kBrickColumns * kBrickBytes;
        _mm512_store_si512(brick, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(brick + kBrickBytes, _mm512_unpackhi_epi16(a, b));
      }
    }
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) != 0;
  }

 private:
  /// Rows of 16 keys, equally far apart.
  struct Group {
    const std::byte* first;
    std::int64_t stride;
  };
  /// Scores of up to two groups of keys from `column` on, with the queries of brick `row`.
  struct Product {
    Group keys[2];
    std::int64_t column, groups, row = 0;
  };

  static std::int64_t LinesOf(std::int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes; }
  void enter_keys(const Chunk& chunk) {
    keys_first_ = chunk.first;
    key_count_ = chunk.end - chunk.first;
    FindRows(tile_.k, tile_.qk_dim - tile_.k_rest.columns, keys_first_, key_count_, keys_);
  }
  std::byte* query_bricks() const { return reinterpret_cast<std::byte*>(buffers_.quad_queries); }

  /// The keys of 16 columns where they are, or, if they do not stand equally far apart or in whole bricks, as a copy.
  Group group(std::int64_t column, std::int64_t slot) const {
    const std::byte* const* row = keys_.row + column;
    if (!stage_) {
      const std::int64_t stride = row[1] - row[0];
      bool equal = true;
      for (std::int64_t i = 2; i < 16; ++i) equal = equal && row[i] - row[i - 1] == stride;
      if (equal) return {row[0], stride};
    }
    const std::int64_t elements = k_steps_ * kBrickDepth;
    auto* to = reinterpret_cast<std::uint16_t*>(buffers_.queries) + slot * kBrickColumns * elements;
    const Group copy = {reinterpret_cast<const std::byte*>(to), elements * 2};
    const std::int64_t apart = tile_.k_rest.columns, own = tile_.qk_dim - apart;
    for (std::int64_t i = 0; i < kBrickColumns; ++i, to += elements) {
      const auto* from = keys_.at<std::uint16_t>(column + i);
      for (std::int64_t dim = 0; dim < elements; dim += kBrickDepth) {
        _mm512_store_si512(to + dim, dim < own ? LoadElements(from + dim, own - dim) : _mm512_setzero_si512());
      }
      // Columns past the chunk's last key repeat its row.
      if (apart > 0) {
        const std::int64_t key = keys_first_ + std::min(column + i, key_count_ - 1);
        std::copy_n(static_cast<const std::uint16_t*>(tile_.k_rest.rows.data) + tile_.k_rest.rows.offset(key), apart,
                    to + own);
      }
    }
    return copy;
  }
  /// Products into accumulators kFirst and kFirst + 1; those of the other two are stored among them, if there are any.
  template <int kFirst>
  HEDDLE_AMX HWY_INLINE void multiply(const Product& product, bool store_other) {
    registers_.template zero<kFirst>();
    registers_.template zero<kFirst + 1>();
    const std::byte* q = query_bricks() + product.row * k_steps_ * kBrickBytes;
    for (std::int64_t step = 0; step < k_steps_; ++step) {
      step % 2 == 0 ? multiply_step<kFirst, 6>(product, q, step) : multiply_step<kFirst, 7>(product, q, step);
      if (step == 0 && store_other) store<2 - kFirst>();
    }
  }
  template <int kFirst, int kRight>
  HEDDLE_AMX HWY_INLINE void multiply_step(const Product& product, const std::byte* q, std::int64_t step) {
    registers_.template load<kRight>(q + step * kBrickBytes, 64);
    registers_.template load_once<4>(product.keys[0].first + step * 64, product.keys[0].stride);
    registers_.template multiply<kFirst, 4, kRight>();
    if (product.groups == 1) return;
    registers_.template load_once<5>(product.keys[1].first + step * 64, product.keys[1].stride);
    registers_.template multiply<kFirst + 1, 5, kRight>();
  }
  template <int kFirst>
  HEDDLE_AMX HWY_INLINE void store() {
    registers_.template store<kFirst>(buffers_.staging, 64);
    registers_.template store<kFirst + 1>(buffers_.staging + 256, 64);
  }
  /// Stored scores [16 keys][16 queries] to rows of queries.
  void transpose(const Product& product) const {
    float* to = buffers_.scores + product.row * kBrickColumns * plan::kChunk + product.column;
    for (std::int64_t i = 0; i < product.groups; ++i) {
      __m512i keys[16];
      HWY_UNROLL(16)
      for (int key = 0; key < 16; ++key) keys[key] = _mm512_load_si512(buffers_.staging + i * 256 + key * 16);
      TransposeWords(keys, reinterpret_cast<std::uint32_t*>(to + i * kBrickColumns), plan::kChunk);
    }
  }

  Registers& registers_;
  const Tile<float>& tile_;
  const TileBuffers<float>& buffers_;
  std::int64_t k_steps_, v_columns_, row_bricks_;
  bool stage_;  // keys are copied, whatever their addresses
  RowAddresses keys_, values_;
  std::int64_t keys_first_ = 0, key_count_ = 0;
  Ahead ahead_;
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
