// What crosses from the threads' side of the CPU backend to the code that is compiled for each SIMD target: plain data.
// T is the type of the computation: float, or double for f64 problems.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/tile_evaluator.h"
#include "heddle/attention.h"
#include "plan/families/cpu_forward.h"

namespace heddle::cpu {

/// Rows of a tensor, each contiguous; row r starts r * stride elements after `data`.
struct ConstRows {
  const void* data = nullptr;
  DType dtype{};
  std::int64_t stride = 0;
};
struct Rows {
  void* data = nullptr;
  DType dtype{};
  std::int64_t stride = 0;
};

/// c = a b, or c = scale c + a b with a scale per row: a [rows][a_stride], b [depth][plan::kPanel], c [rows][c_stride].
/// The first `columns` of b and c take part, a multiple of 16. scales [rows], or null: c is overwritten. b and c are
/// aligned to 64 bytes.
template <class T>
struct Product {
  const T* a;
  std::int64_t a_stride;
  const T* b;
  T* c;
  std::int64_t c_stride;
  std::int64_t rows, columns, depth;
  const T* scales;
};

/// Keys [begin, end) of one sequence and head, `begin` a multiple of plan::kPanel, `end` too or the last key + 1.
/// panels: all of the packed keys, [ceil(keys / kPanel)][dim][kPanel]; columns past the end become 0.
/// staging: [kPanel][kPanel].
template <class T>
struct PackKeys {
  ConstRows from;
  std::int64_t begin, end, dim;
  T* panels;
  T* staging;
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

/// The packed keys and values that a tile reads; v panels hold v_keys rows, which may be more than the sequence has.
template <class T>
struct PackedHead {
  const T* k = nullptr;
  const T* v = nullptr;
  const std::uint8_t* v_flags = nullptr;
  std::int64_t v_keys = 0;
};

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
  T* staging;
  std::int64_t q_stride, o_stride;
};

/// A mod and the registers of the worker that runs it; no mod when program is null.
struct TileMod {
  const TileProgram* program = nullptr;
  TileProgram::Scratch* scratch = nullptr;

  explicit operator bool() const { return program != nullptr; }
};

/// A tile of queries of one head, and all that its result depends on.
template <class T>
struct Tile {
  TilePosition at;  // kv_first and columns are filled in as the tile walks its keys
  std::int64_t qk_dim, v_dim;
  Normalizer normalizer;

  ConstRows q;  // row 0 is the tile's first query
  T q_scale;    // scale and the descales of q and k
  PackedHead<T> head;

  /// Blocks of block_keys keys that attend.
  std::span<const Run> runs;
  std::int64_t block_keys;
  TileMod full;     // score mod of full runs
  TileMod partial;  // of partial runs: the score mod where the mask is true, -inf elsewhere
  TileMod weight;

  bool has_sink;
  double sink;
  double v_scale;  // v's descale
  Rows o;
  Rows lse;  // one element a row; data null: not wanted
};

// Dispatched once a call to the best SIMD target of the machine.
void multiply(const Product<float>& product);
void multiply(const Product<double>& product);
void pack(const PackKeys<float>& keys);
void pack(const PackKeys<double>& keys);
void pack(const PackValues<float>& values);
void pack(const PackValues<double>& values);
void attend(const Tile<float>& tile, const TileBuffers<float>& buffers);
void attend(const Tile<double>& tile, const TileBuffers<double>& buffers);

}  // namespace heddle::cpu
