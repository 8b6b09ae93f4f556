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
  constexpr int threads() const { return row_waves * shape().wave; }
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

/// Numbers of a query that steps read: lse in powers of two and delta. With lse in two words: what scores are compared
/// with, delta, and what is left of lse in powers of two.
constexpr int row_numbers(bool lse_rest) { return lse_rest ? 3 : 2; }

/// Offsets in bytes.
struct BackwardMmaMemory {
  int scores, values;  // the memory of both sides' fragments
  int numbers;         // of_keys: row_numbers() of a step's queries
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
  memory.bytes =
      memory.numbers + (config.of_keys ? row_numbers(config.lse_rest) * config.step * real_bytes(config.storage) : 0);
  return memory;
}

/// Configuration of the kernels around the passes.
struct BackwardMmaRows {
  Storage storage = Storage::bf16;  // of dO
  int v_dim = 0;
  Normalizer normalizer = Normalizer::softmax;
  StorageType o_type = StorageType::same;
  bool lse_rest = false;  // lse comes in two words
  bool sinks = false;     // d_sinks is asked for
  StorageType d_sinks_type = StorageType::f32;
  constexpr bool operator==(const BackwardMmaRows&) const = default;
};

}  // namespace heddle::shared
