// backward_mma's configuration: what one pass of the portable backward computes, and how. Read by the planner, by the
// launchers, and by the kernels themselves: no headers but these, plain integers only.
//
// A CTA (AMD: workgroup) has a tile of rows: queries or keys of one head. It holds their gradients in its registers and
// walks the steps that attend them. A step brings two blocks: one of q or k, and one of dO or v. Each product is one of
// forward_mma's fragments, so a pass is two of its configurations, side by side in shared memory.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::shared {

/// Rows, and columns, of a block of scores in the lists of tiles and steps.
inline constexpr int kBackwardBlock = 64;

/// How a pass treats the parts of gradients of captures and params: it adds them as reals, in any order; it finds the
/// largest part of each sum; or it adds them as integers, whose unit leaves room for all of them beside the largest.
/// Sums of integers do not depend on the order.
enum class ReadParts : int { reals, largest, integers };
inline constexpr const char* kReadParts[] = {"reals", "largest", "integers"};
constexpr const char* name(ReadParts parts) { return kReadParts[static_cast<int>(parts)]; }

struct BackwardMmaConfig {
#define HEDDLE_FIELD(type, name, value) type name = value;
#include "families/backward_mma/shared/backward_mma_config.def"
#undef HEDDLE_FIELD

  constexpr Fragments shape() const { return fragments_of(fragments); }
  constexpr int wave_rows() const { return row_fragments * shape().rows; }
  constexpr int rows() const { return row_waves * wave_rows(); }  // of a tile
  constexpr int threads() const { return waves() * shape().wave; }
  constexpr int waves() const { return row_waves * step_waves; }
  constexpr int wave_step() const { return step / step_waves; }  // columns of a wave's scores
  /// P and dS of a step pass through shared memory to all gradients, else dS to dq alone.
  constexpr bool shares_terms() const { return step_waves > 1; }
  /// adds_d_q: each wave multiplies dS of its own keys, and adds that to dq's sums.
  constexpr bool adds_alone() const { return adds_d_q && shape().turned_queries > 0; }
  /// CTAs that share a tile of the lists, which has 64 rows or more.
  constexpr int parts() const { return rows() < kBackwardBlock ? kBackwardBlock / rows() : 1; }
  constexpr int ctas_of_item() const { return parts() * slices; }
  /// The pass stores no gradient of rows.
  constexpr bool finds_parts() const { return read_parts == ReadParts::largest; }
  /// Columns of a slice of a gradient of `dim` columns: whole fragments, alike of all slices.
  constexpr int slice_columns(int dim) const {
    const int fragment = shape().columns, even = (dim + slices - 1) / slices;
    return (even + fragment - 1) / fragment * fragment;
  }
  constexpr TileShape tile() const { return {rows() < kBackwardBlock ? 1 : rows() / kBackwardBlock, kBackwardBlock}; }
  constexpr bool operator==(const BackwardMmaConfig&) const = default;
};

/// The configuration of a forward that computes the products of q and k, or of v and dO. Its rows are the tile's, its
/// keys the steps': S = rows step^T, and gradients of the rows += x step.
constexpr ForwardMmaConfig side_of(const BackwardMmaConfig& config, int dim, bool adds, int stages) {
  ForwardMmaConfig side;
  side.fragments = config.fragments;
  side.qk_dim = side.v_dim = dim;
  side.row_waves = config.row_waves;
  side.key_waves = config.step_waves;
  side.row_fragments = config.row_fragments;
  side.kv_block = config.step;
  side.shared_queries = config.shared_rows;
  side.ctas = config.ctas;
  side.storage = config.storage;
  side.q_bytes = config.row_bytes;
  side.kv_bytes = config.step_bytes;
  side.blocks = adds ? StepBlocks::both_ways : StepBlocks::keys;
  side.stages = stages;
  if (adds && config.slices > 1) {
    side.value_slices = config.slices;
    side.v_dim = config.slice_columns(dim);
  }
  return side;
}
constexpr ForwardMmaConfig scores_side(const BackwardMmaConfig& config) {
  return side_of(config, config.qk_dim, config.d_qk && !config.finds_parts(), config.d_qk ? config.stages : 1);
}
constexpr ForwardMmaConfig values_side(const BackwardMmaConfig& config) {
  return side_of(config, config.v_dim, config.d_v, 1);
}

/// adds_d_q: dQ = dS^T K of a step. Its rows are the step's queries, and its keys the tile's, which stand in the memory
/// of scores_side()'s rows.
constexpr ForwardMmaConfig queries_side(const BackwardMmaConfig& config) {
  BackwardMmaConfig turned = config;
  turned.step = config.rows();
  turned.row_fragments = 1;
  return side_of(turned, config.qk_dim, true, 1);
}
/// Fragments of a step's dQ: of its rows and of its columns; and in how many parts waves share either.
struct StepFragments {
  int rows, columns, row_parts, column_parts;
  constexpr int rows_of_wave() const { return rows / row_parts; }
  constexpr int columns_of_wave() const { return (columns + column_parts - 1) / column_parts; }
};
constexpr StepFragments step_fragments(const BackwardMmaConfig& config) {
  const Fragments shape = config.shape();
  StepFragments of{config.step / shape.rows, (config.qk_dim + shape.columns - 1) / shape.columns, 1, config.waves()};
  // A wave reads as much of K as of dS if it has equal numbers of fragments of columns and of rows.
  while (of.rows % (2 * of.row_parts) == 0 && of.column_parts % 2 == 0 && of.rows_of_wave() > of.columns_of_wave()) {
    of.row_parts *= 2;
    of.column_parts /= 2;
  }
  return of;
}
/// Floats of dQ's sums of a block of 64 queries and a head: whole fragments, one behind the other, those of 16 rows
/// together.
constexpr int d_q_floats(const BackwardMmaConfig& config) {
  const Fragments shape = config.shape();
  return kBackwardBlock * ((config.qk_dim + shape.columns - 1) / shape.columns * shape.columns);
}

/// Numbers of a query that steps read: lse in powers of two and delta. With lse in two words: the number that scores
/// are compared with, delta, and the rest of lse in powers of two.
constexpr int row_numbers(bool lse_rest) { return lse_rest ? 3 : 2; }

/// adds_alone(), and no weights pass through shared memory: bytes of half of a wave's turned dS.
constexpr int turned_half(const BackwardMmaConfig& config) { return config.wave_rows() * kTurnedPitch; }

/// Offsets in bytes.
struct BackwardMmaMemory {
  int scores, values;  // the memory of both sides' fragments
  int numbers;         // of_keys: row_numbers() of a step's queries
  int slopes;          // adds_d_q, not alone: dS of a step, [keys of the tile][queries]
  int weights;         // shares_terms(): P, likewise
  int term_pitch;      // of both, from one key to the next
  int turned[2];       // adds_alone(): where a wave's dS stands, turned, in two parts
  int turned_wave;     // from a wave's to the next one's
  int bytes;
};
constexpr BackwardMmaMemory backward_mma_memory(const BackwardMmaConfig& config) {
  constexpr int kAligned = 128;
  const auto aligned = [](int bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; };
  BackwardMmaMemory memory{};
  memory.values = aligned(forward_mma_memory(scores_side(config)).bytes);
  // Without dk and dq there is no product of v and dO, so the rows' operand takes no memory.
  ForwardMmaConfig values = values_side(config);
  values.shared_queries = values.shared_queries && config.d_qk;
  memory.numbers = memory.values + aligned(forward_mma_memory(values).bytes);
  memory.slopes =
      memory.numbers + (config.of_keys ? row_numbers(config.lse_rest) * config.step * real_bytes(config.storage) : 0);
  memory.term_pitch = row_pitch(config.step, bytes_of(config.storage));
  const int terms = config.adds_alone() ? 0 : config.rows() * memory.term_pitch;
  memory.weights = memory.slopes + (config.adds_d_q ? terms : 0);
  memory.bytes = memory.weights + (config.shares_terms() ? terms : 0);
  if (config.adds_alone()) {
    const int weights = weight_bytes(scores_side(config)), half = turned_half(config);
    // dS of a fragment of queries takes the memory that weights of both sides pass through.
    memory.turned[0] = weights > 0 ? memory.scores + forward_mma_memory(scores_side(config)).weights : memory.slopes;
    memory.turned[1] =
        weights > 0 ? memory.values + forward_mma_memory(values).weights : memory.slopes + config.waves() * half;
    memory.turned_wave = weights > 0 ? weights : half;
    memory.bytes += weights > 0 ? 0 : 2 * config.waves() * half;
  }
  return memory;
}

/// Configuration of the kernels around the passes.
struct BackwardMmaRows {
  Storage storage = Storage::bf16;  // of dO
  int v_dim = 0;
  Normalizer normalizer = Normalizer::softmax;
  StorageType o_type = StorageType::same;
  int row_bytes = 1;      // that divide the addresses of rows of o and dO
  bool lse_rest = false;  // lse comes in two words
  bool sinks = false;     // d_sinks is asked for
  StorageType d_sinks_type = StorageType::f32;
  constexpr bool operator==(const BackwardMmaRows&) const = default;
};

}  // namespace heddle::shared
