// Plain data that the threads' side of the CPU backward hands to the code compiled for each SIMD target. T is the type
// of the computation: float, or double for f64 problems.
//
// A step is one tile of queries against one run of keys inside one tile of keys:
//
//   S = Q K^T      t = mods(S)      p = exp((t - lse) - lse_rest)      dP = dO V^T      dS = dt/ds p (w dP - delta)
//   dV += (p w)^T dO      dK += dS^T Q      dQ += dS K
//
// Panels hold rows of a tensor in columns of plan::kPanel, [ceil(dim / kPanel)][rows][kPanel], with 0 past `dim`:
// queries, dO, keys and the gradients of all three. Keys and values also stand transposed, as the forward packs keys:
// [ceil(keys / kPanel)][dim][kPanel].
#pragma once

#include <cstdint>
#include <span>

#include "families/cpu/cpu_backward_plans.h"
#include "families/cpu/target_data.h"

namespace heddle::cpu {

/// One read of a mod that gets a gradient: its program (none: 1) gives the mod's derivative by what is read. The step
/// leaves the loss's gradient by the read of each element in `gradients`, 0 where nothing attends.
template <class T>
struct StepRead {
  TileMod slope;
  bool of_weight;  // the weight mod's, else the score mod's
  T* gradients;    // at step_element
};

/// The queries of a step.
template <class T>
struct StepQueries {
  const T* q;    // panels of panel_rows rows, from the tile's first
  const T* d_o;  //
  T* dq;         // null: not wanted
  std::int64_t panel_rows;
  const T* lse;                       // [rows]; null unless the normalizer is softmax
  const T* lse_rest;                  // [rows]; null: 0
  const T* delta;                     // [rows]
  bool q_non_finite, d_o_non_finite;  // in some row
};

/// The tile of keys, of tile_keys rows.
template <class T>
struct StepKeys {
  const T* k_columns;  // transposed
  const T* v_columns;
  const T* k_rows;  // panels of tile_keys rows; null: dq is not wanted
  T* dk;            // as k_rows; null: not wanted
  T* dv;
  std::int64_t tile_keys;
  bool non_finite;  // in k, of some row
};

template <class T>
struct BackwardStep {
  TilePosition at;  // kv_first: the sequence's key at which the tile of keys starts; columns says nothing
  std::int64_t qk_dim, v_dim;
  Normalizer normalizer;
  StepQueries<T> queries;
  StepKeys<T> keys;
  std::int64_t begin, end;  // the run's keys, counted from the tile's first
  T score_factor;           // scale and the descales of q and k
  T gradient_factor;        // what dS has of it; the rest comes when dq and dk are stored
  T value_factor;           // v's descale
  std::int64_t column_unit = kColumnUnit;
  TileMod mod, slope, weight;
  std::span<const StepRead<T>> reads;
  // Room for twice as many, for who computes the step in parts, of which two are open.
  std::span<StepRead<T>> part_reads;
};

/// A worker's buffers, as plan::CpuBackwardScratch says.
template <class T>
struct StepBuffers {
  T* scores;                // [rows][kScoreStride]: s, then t, then p w
  T* slopes;                // of the score mod; null: 1
  T* weights;               // null: 1
  T* d_p;                   // dP, then dS
  T* factors;               // [rows]
  std::uint8_t* attending;  // at step_element: 0, 1, or kHidden (hidden_elements-inl.h)
  // For rows that are not finite: panels of the finite rows, and a flag for each row. They have room for a tile's rows.
  T* finite;
  std::uint8_t* special;
  T* score_copy;  // s, at step_element; null: not wanted
};

/// The operands of a step whose products AMX computes. Queries and dO are those of the whole head, from its first row,
/// and so is dq. Keys and values are the tile's: k and v as bricks of keys, k_rows as bricks of values.
struct BrickOperands {
  TwoWayRows q{}, d_o{};
  float* dq = nullptr;          // panels of panel_rows rows; null: not wanted
  std::int64_t panel_rows = 0;  // the head's, up to kUnitRows
  std::byte *k = nullptr, *v = nullptr, *k_rows = nullptr;
  float *dk = nullptr, *dv = nullptr;  // transposed: [dim up to kBrickColumns][gradient_stride]; null: not wanted
};

/// A worker's buffers of such steps. p w and dS stand as bricks of pairs of queries,
/// [rows / kUnitRows][tile_keys / kBrickColumns][brick]; the rows begin with a whole group of kUnitRows.
struct BrickBuffers {
  std::byte *weights, *d_s;
  std::uint16_t* d_s_rows;  // [2][kUnitRows][kDerivativeStride]: of two groups of queries
  std::uint16_t* finite;    // a copy of an operand without rows that are not finite
};

void step(const BackwardStep<float>& step, const StepBuffers<float>& buffers);
void step(const BackwardStep<double>& step, const StepBuffers<double>& buffers);
/// For AVX-512 alone: on machines whose MatrixUnit is not none. scores, slopes, weights and d_p have kUnitRows rows; q,
/// d_o, dq and the panels of keys of `step` are not read; column_unit is kBrickDepth.
void step(const BackwardStep<float>& step, const BrickOperands& operands, const StepBuffers<float>& buffers,
          const BrickBuffers& bricks, device::MatrixUnit unit);
/// Gradients of `keys` keys, transposed, to panels of tile_keys rows.
struct TransposedGradients {
  const float* from;
  std::int64_t dim, keys, tile_keys;
};
void transpose(const TransposedGradients& gradients, float* panels);

/// Sums of panels, row by row, to a tensor.
template <class T>
struct StorePanels {
  const T* from;  // the first of `parts` panels of panel_rows rows
  std::int64_t parts, part_stride, panel_rows;
  std::int64_t first, rows, dim;
  T factor;    // of the sums
  Rows to;     // row 0 is row `first` of the panels
  T* staging;  // [kPanel]
};
/// Row `row` of both, `count` elements each. T holds every element exactly.
template <class T>
struct RowPair {
  const ConstRows &x, &y;
  std::int64_t row, count;
};
/// The sum of products in f64, whose order is its own.
double dot(const RowPair<float>& rows);
double dot(const RowPair<double>& rows);
/// to[i] += from[i] for `count` elements.
void add_row(const float* from, std::int64_t count, float* to);
void add_row(const double* from, std::int64_t count, double* to);

void store_panels(const StorePanels<float>& panels);
void store_panels(const StorePanels<double>& panels);

}  // namespace heddle::cpu
