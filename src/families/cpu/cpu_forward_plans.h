// The CPU forward family: its tile, and every byte that it needs. Numbers count elements of the type it computes in
// (f32, or f64 for f64 problems) unless they say bytes.
//
// A (sequence, kv head) pair goes one of two ways. Where many queries read its keys and values, these are packed once
// into panels of kPanel columns:
//   K  [ceil(keys / kPanel)][Dqk][kPanel]      V  [ceil(Dv / kPanel)][keys][kPanel], and a flag for each kPanel keys
// Where all of its queries (of all heads of the group) fit in one tile and are few beside the keys, as in decoding, the
// tile reads them in place, a chunk at a time, and the keys that attend are cut into pieces, whose partial results are
// merged by their maxima.
// A worker's scratch holds one tile: its queries, a score buffer of kChunk columns, accumulators, row statistics.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace heddle::plan {

inline constexpr std::int64_t kPanel = 64;             // columns of a packed panel
inline constexpr std::int64_t kChunk = 128;            // keys of one step, at most
inline constexpr std::int64_t kRowGroup = 6;           // rows of the micro-kernel; scratch holds whole groups
inline constexpr std::int64_t kSplitKeys = 2048;       // keys of a piece, at most
inline constexpr std::int64_t kLeastSplit = 512;       // keys of a piece, unless there are fewer
inline constexpr std::int64_t kDecodeRows = 64;        // queries of a group's heads whose keys are cut into pieces
inline constexpr std::int64_t kPackedRows = 6;         // queries from which on few keys are packed
inline constexpr std::int64_t kPackedShare = 2;        // keys are packed up to the square of the queries over this
inline constexpr std::int64_t kPackedShareOfMask = 8;  // likewise beside a mask, which may leave few keys
inline constexpr std::int64_t kQuadKeys = 32;          // keys that stay in L1 while many rows of queries pass over them
inline constexpr std::int64_t kStagedGap = 16;         // between staged values: powers of two would share few L1 sets
inline constexpr std::int64_t kUnitRows = 32;          // of a tile whose products AMX computes: two of its registers
inline constexpr std::int64_t kLeastUnitRows = 5;      // of a tile in place from which on AMX computes its products
inline constexpr std::int64_t kAlignment = 64;         // bytes; every buffer starts at a multiple

constexpr std::int64_t round_up(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }

/// Packed keys and values that do not stay in a core's L2 would be read from beyond it for each tile of queries. A
/// bundle is a number of tiles of the same packed keys that one worker takes through `keys` keys, which do stay, before
/// any of them goes on.
inline constexpr std::int64_t kMostBundle = 16;
struct CpuBundles {
  std::int64_t tiles = 1;       // of a bundle, at most; 1: each tile goes alone
  std::int64_t keys = 0;        // a multiple of kChunk
  std::int64_t least_keys = 0;  // a tile that sees fewer goes alone
};

/// The family's part of a plan. unit: what multiplies where keys and values are packed, and in place from
/// kLeastUnitRows rows on. For AMX they are packed in bricks of bf16 (bricks-inl.h) instead of panels.
struct CpuForwardPart {
  device::MatrixUnit unit = device::MatrixUnit::none;
  CpuBundles bundles{};

  bool bricks() const { return unit != device::MatrixUnit::none; }
};

/// Offsets in bytes of a worker's buffers, each [rows][...] with `rows` a multiple of kRowGroup.
struct CpuForwardScratch {
  // A tile's state from chunk to chunk: the first `state_bytes`. Further tiles of a bundle have theirs from
  // `more_states` on.
  std::int64_t queries;       // [rows][q_stride]
  std::int64_t accumulators;  // [rows][o_stride]
  std::int64_t row_sums;      // [rows][lanes of a 64-byte vector]
  std::int64_t row_maxima;    // [rows]
  std::int64_t row_scales;    // [rows]
  std::int64_t row_factors;   // [padded_rows]
  std::int64_t brick_sums;    // with bricks only: two pairs of [rows][lanes of a 64-byte vector]
  std::int64_t state_bytes;
  // Tiles of a bundle share the rest.
  std::int64_t scores;     // [padded_rows][kChunk]
  std::int64_t weights;    // [rows][kChunk], with a weight mod only
  std::int64_t attending;  // [rows][kChunk] bits, whatever the element
  std::int64_t infinite;   // [rows][kChunk] bits
  std::int64_t staging;    // [kChunk][kPanel]: rows on their way into a panel, or a changed copy of one
  // Where keys and values are read in place:
  std::int64_t chunk_keys;    // [kChunk][q_stride]: the chunk's keys where they are staged
  std::int64_t chunk_values;  // [kChunk][o_stride + kStagedGap]
  std::int64_t quad_queries;  // [padded_rows][q_stride]: the queries in blocks of four dimensions
  std::int64_t more_states;
  std::int64_t bytes;  // of all of it
  std::int64_t rows, q_stride, o_stride;
  std::int64_t padded_rows;  // rows up to whole vectors
};
CpuForwardScratch cpu_forward_scratch(const problem::AttentionProblem& problem, std::int64_t tile_rows,
                                      bool bricks = false, std::int64_t bundle_tiles = 1);

/// True when a sequence's keys and values are read in place.
bool cpu_forward_in_place(const problem::AttentionProblem& problem, const Sequence& sequence, std::int64_t tile_rows,
                          bool bricks = false);

/// Bytes of a sequence's packed keys of one head; of its values and their flags.
std::int64_t cpu_forward_packed_k_bytes(const problem::AttentionProblem& problem, std::int64_t keys,
                                        bool bricks = false);
std::int64_t cpu_forward_packed_v_bytes(const problem::AttentionProblem& problem, std::int64_t keys,
                                        bool bricks = false);
/// The offset of the flags in packed values.
std::int64_t cpu_forward_v_flags_offset(const problem::AttentionProblem& problem, std::int64_t keys,
                                        bool bricks = false);

/// No tile that attends `keys` keys or fewer has more pieces. Their own number may be larger than that of more keys.
std::int64_t cpu_forward_most_pieces(const problem::AttentionProblem& problem, std::int64_t keys);

/// Keys of each piece, but the last, of a tile that `keys` keys attend: a number that depends on them and on the heads
/// alone, so the threads do not change a result.
std::int64_t cpu_forward_piece_keys(const problem::AttentionProblem& problem, std::int64_t keys);

/// The partial results of the pieces of one pair, as many as a tile of it may have; rows = queries of all heads of the
/// group: o [pieces][rows][o_stride], maxima [pieces][rows], sums [pieces][rows]. All 0 bytes for a single piece.
struct CpuForwardPartials {
  std::int64_t pieces, rows;
  std::int64_t maxima, sums;  // offsets in bytes; o is at 0
  std::int64_t bytes;
};
CpuForwardPartials cpu_forward_partials(const problem::AttentionProblem& problem, const Sequence& sequence);

/// Bytes for packed keys, packed values and partial results at one time: those of all pairs if they are at most 512
/// MiB. Else the launch goes in waves of pairs that fit in 512 MiB; a pair that is larger is a wave of its own.
std::int64_t cpu_forward_pair_bytes(const problem::AttentionProblem& problem, std::int64_t tile_rows,
                                    bool bricks = false);

/// The family's plan. The tile depends on the problem and the machine, not on the number of threads, so that results do
/// not either.
Plan cpu_forward(const problem::AttentionProblem& problem, int threads, const device::Caps& caps);
/// With the other tiles.
std::vector<Plan> cpu_forward_variants(const problem::AttentionProblem& problem, int threads, const device::Caps& caps);

}  // namespace heddle::plan
