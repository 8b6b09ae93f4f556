// Plain data that the threads' side of the CPU backend hands to the code compiled for each SIMD target. T is the type
// of the computation: float, or double for f64 problems.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/caps.h"
#include "families/cpu/cpu_forward_plans.h"
#include "heddle/attention.h"
#include "tile_evaluator/tile_evaluator.h"

namespace heddle::cpu {

/// Where rows stand that are in pages: row r is row r % rows of page table[r / rows * table_stride]. Entries that no
/// query reads may be no page's number: they count as the nearest page.
struct Pages {
  const std::int32_t* table = nullptr;  // null: rows are in no pages
  std::int64_t table_stride = 0, rows = 1, page_stride = 0;
  std::int32_t last = 0;  // page
};

/// Rows of a tensor, each contiguous; row r starts r * stride elements after `data`, if there are no pages.
struct ConstRows {
  const void* data = nullptr;
  DType dtype{};
  std::int64_t stride = 0;
  Pages pages{};

  /// Offset of row r, in elements after `data`.
  std::int64_t offset(std::int64_t r) const {
    if (pages.table == nullptr) return r * stride;
    const std::int32_t page = pages.table[r / pages.rows * pages.table_stride];
    return std::clamp(page, 0, pages.last) * pages.page_stride + r % pages.rows * stride;
  }
};
/// Rows whose last `columns` columns stand in tensors of their own; 0: none do.
struct RestOfRows {
  ConstRows rows{};
  std::int64_t columns = 0;
};
struct Rows {
  void* data = nullptr;
  DType dtype{};
  std::int64_t stride = 0;
};

/// Which of a's axes are rows of the product.
enum class ProductSide : std::uint8_t { rows, columns };
/// c = factor (a b), c = factor (c + a b) or c = factor (scale c + a b), scale and factor per row: b
/// [depth][plan::kPanel], c [rows][c_stride]. a's rows stand in its rows, [rows][a_stride], or in its columns,
/// [depth][a_stride]. The first `columns` of b and c take part, a multiple of 16. factors [rows], or null: 1. b and c
/// are aligned to 64 bytes.
template <class T>
struct Product {
  const T* a;
  std::int64_t a_stride;
  const T* b;
  T* c;
  std::int64_t c_stride;
  std::int64_t rows, columns, depth;
  const T* scales;  // [rows], or null: c is overwritten
  const T* factors = nullptr;
  ProductSide side = ProductSide::rows;
  bool add = false;  // c + a b; scales is null
};

/// Keys [begin, end) of one sequence and head, `begin` a multiple of plan::kPanel, `end` too or the last key + 1.
/// panels: all of the packed keys, [ceil(keys / kPanel)][dim][kPanel]; columns past the end become 0 to a multiple of
/// kColumnUnit, and behind that stay as they are.
/// staging: [kPanel][kPanel].
template <class T>
struct PackKeys {
  ConstRows from;
  std::int64_t begin, end, dim;
  T* panels;
  T* staging;
  RestOfRows rest{};  // of the keys' columns
};

/// Values [begin, end), as above, to panels [ceil(dim / kPanel)][keys][kPanel], with 0 past `dim`. A flag of each
/// kPanel values says that one of their elements is NaN or infinite.
template <class T>
struct PackValues {
  ConstRows from;
  std::int64_t begin, end, dim, keys;
  T* panels;
  std::uint8_t* flags;
};

/// The right operand of one instruction of AMX: 32 steps of a sum for 16 columns, in pairs (bricks-inl.h).
inline constexpr std::int64_t kBrickColumns = 16, kBrickDepth = 32, kBrickBytes = 1024;

/// Keys or values of bf16 [begin, end), as above, to bricks. flags: of values, as above; null: keys.
struct PackBricks {
  ConstRows from;
  std::int64_t begin, end, dim;
  std::byte* bricks;
  std::uint8_t* flags;
  RestOfRows rest{};  // of keys
};

/// Rows of bf16 as left operands of both kinds of products. `rows` has them as they are, [rows][dim up to kBrickDepth];
/// `columns` stand along the sums over rows, [rows / kUnitRows][dim up to kBrickColumns][kUnitRows]. Rows past the last
/// are 0, up to kUnitRows.
struct TwoWayRows {
  std::uint16_t* rows = nullptr;
  std::uint16_t* columns = nullptr;
};

/// Rows [begin, end), as above. A flag of each kPanel rows says that one of their elements is NaN or infinite.
struct PackTwoWays {
  ConstRows from;
  std::int64_t begin, end, dim;
  TwoWayRows to;
  std::uint8_t* flags;
};

/// A head's keys and values in bricks.
struct BrickHead {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const std::uint8_t* v_flags = nullptr;
};

/// Packed keys and values; v panels hold v_keys rows, which may be more than the sequence has.
template <class T>
struct PackedHead {
  const T* k = nullptr;
  const T* v = nullptr;
  const std::uint8_t* v_flags = nullptr;
  std::int64_t v_keys = 0;
};

/// Columns of scores are computed in units of 64 bytes of f32, to which the tile evaluator's rows are aligned too.
inline constexpr std::int64_t kColumnUnit = 16;
/// The columns of a chunk's scores as bits.
inline constexpr std::int64_t kColumnWords = plan::kChunk / 64;

/// A worker's buffers, as plan::CpuForwardScratch says.
template <class T>
struct TileBuffers {
  T* queries;
  T* scores;
  T* weights;
  T* accumulators;
  T* row_sums;
  T* row_maxima;
  T* row_scales;
  T* row_factors;            // of products of queries and keys: scale and descales
  std::uint64_t* attending;  // of each row kColumnWords: columns that it attends among those whose values are special
  std::uint64_t* infinite;   // likewise: those among them whose weight is infinite
  T* staging;
  T* chunk_keys;
  T* chunk_values;
  T* quad_queries;
  T* brick_sums;
  std::int64_t q_stride, o_stride;
};

/// A mod and the registers of the worker that runs it; no mod when program is null.
struct TileMod {
  const TileProgram* program = nullptr;
  TileProgram::Scratch* scratch = nullptr;

  explicit operator bool() const { return program != nullptr; }
};

/// One number a query head, or the same for all.
template <class T>
struct PerHead {
  const T* data = nullptr;
  std::int64_t stride = 0;

  explicit operator bool() const { return data != nullptr; }
  double operator[](std::int64_t head) const { return static_cast<double>(data[head * stride]); }
};

/// Where the unfinished rows of one pair stand: plan::CpuForwardPartials.
template <class T>
struct Partials {
  T* o = nullptr;
  T* maxima = nullptr;
  T* sums = nullptr;
  std::int64_t pieces = 1, rows = 0;  // rows of a piece
};

/// A tile of queries and all that its result depends on. Its rows are at.rows queries of each of `heads` heads, from
/// at.h on, head by head; what is said of row 0 below is the first query of head at.h.
template <class T>
struct Tile {
  TilePosition at;  // kv_first and columns are filled in as the tile walks its keys
  std::int64_t heads;
  std::int64_t qk_dim, v_dim;
  Normalizer normalizer;

  ConstRows q;
  RestOfRows q_rest, k_rest;
  std::int64_t q_head_stride, q_rest_head_stride;
  double q_scale;            // scale and the descale of k
  PerHead<float> q_descale;  // from head at.h on
  BrickHead bricks;          // where keys and values are packed in bricks;
  PackedHead<T> head;        // in panels; else they are read in place:
  ConstRows k, v;            // row 0 is the sequence's first key

  /// Blocks of block_keys keys that attend; keys [key_begin, key_end) of them are this tile's.
  RowRuns runs;
  std::int64_t block_keys, key_begin, key_end;
  TileMod full;     // score mod of full runs
  TileMod partial;  // of partial runs: the score mod where the mask is true, -inf elsewhere
  TileMod weight;

  PerHead<T> sinks;  // from head at.h on
  double v_scale;    // v's descale
  Rows o;
  std::int64_t o_head_stride;
  Rows lse;  // one element a row; data null: not wanted
  std::int64_t lse_head_stride;
  Rows max_scores;  // the same
  Rows lse_rest;    // the same; only with lse
  std::int64_t max_scores_head_stride, lse_rest_head_stride;
  Partials<T> partials;  // with more than one piece: where the rows go instead of o and lse
  std::int64_t piece, partial_row;

  std::int64_t rows() const { return heads * at.rows; }
};

/// Tiles of packed keys that one worker takes through the same `keys` keys at a time (cpu_forward_plans.h), or one tile
/// of any kind, whatever `keys` is. Each has buffers of its own for what it keeps from chunk to chunk.
template <class T>
struct Bundle {
  std::span<const Tile<T>> tiles;
  std::span<const TileBuffers<T>> buffers;
  std::int64_t keys;
};

// Dispatched once a call to the best SIMD target of the machine.
void multiply(const Product<float>& product);
void multiply(const Product<double>& product);
void pack(const PackKeys<float>& keys);
void pack(const PackKeys<double>& keys);
void pack(const PackValues<float>& values);
void pack(const PackValues<double>& values);
void attend(const Bundle<float>& bundle);
void attend(const Bundle<double>& bundle);
// For AVX-512 alone: on machines whose MatrixUnit is not none.
void pack(const PackBricks& bricks);
void pack(const PackTwoWays& rows);
/// The sum of products in f64, whose order is its own.
double dot_of_bf16(const std::uint16_t* a, const std::uint16_t* b, std::int64_t count);
/// Tiles of at most kUnitRows rows from their bricks, or one of at most kDecodeRows rows from keys and values in place.
void attend_bricks(const Bundle<float>& bundle, device::MatrixUnit unit);
/// The rows of all pieces become o and lse; tile.piece says nothing.
void merge_pieces(const Tile<float>& tile, const TileBuffers<float>& buffers);
void merge_pieces(const Tile<double>& tile, const TileBuffers<double>& buffers);

}  // namespace heddle::cpu
