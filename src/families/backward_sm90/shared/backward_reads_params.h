// Gradients of captures and params on backward_sm90: what its kernels that sum them are told. Each place where a mod
// reads a capture or a param ("read") gives each pair of a query and a key a gradient, dt * dt/dread, which belongs to
// an element of the capture: the pair's place. A read's kind says how these become sums.
//
// columns, rows and diagonals first add up what must belong to one place: a number for each key, query or distance of a
// sequence and head ("partials"), each in a fixed order. Partials then become integers of a unit that the largest of
// them decides, and are added to their places in any order: integers have the same sum in each.
//
// Read by the planner, the launcher, and the kernels when NVRTC compiles them: no headers but these, plain integers
// only.
#pragma once

#include "families/backward_sm90/shared/backward_sm90_params.h"

namespace heddle::shared {

enum class ReadKind : int {
  columns,    // the place reads the key alone, or neither
  rows,       // the query alone
  closed,     // the same, of a term whose sum over keys each row knows: d_lse, and the sink's share of delta
  diagonals,  // kv_idx - q_idx alone
  stored,     // each pair has a place of its own: stored in the gradient itself
  owned,      // each pair of one sequence and head has: added in the order of launches and of a tile's heads
  added       // any place: adds of f32 in any order
};
inline constexpr const char* kReadKinds[] = {"columns", "rows", "closed", "diagonals", "stored", "owned", "added"};
constexpr const char* name(ReadKind kind) { return kReadKinds[static_cast<int>(kind)]; }
/// It has partials.
constexpr bool has_partials(ReadKind kind) { return kind < ReadKind::stored; }
/// A pass over all pairs computes it.
constexpr bool visits_pairs(ReadKind kind) { return kind != ReadKind::closed; }

inline constexpr int kMostReads = 16;
inline constexpr int kMostSums = 16;  // gradients of captures and params

/// The sum of one capture or param. Elements are numbered row by row.
struct ReadSum {
  void* data;           // the gradient
  long long stride[4];  // in elements
  int extent[4];
  int rank;
  int bits;  // no more than 2^bits partials are added to one element
  long long count;
  long long* fixed;   // sums of integers; null: it has no partials
  float* floats;      // sums of f32, and of partials that are not finite; null: stored
  unsigned* largest;  // bits of the largest partial's magnitude
};

/// Parameters of the kernels beside BackwardSm90Params.
struct BackwardReadsParams {
  ReadSum sums[kMostSums];
  float* partials[kMostReads];
  char* zeros;  // memory that each run begins with zeros
  long long zero_bytes;
  int ctas;    // of kernels that walk elements one after the other
  int apart;   // partials of rows and diagonals: each 64 keys have their own, else they are added in any order
  int groups;  // of 64 keys, in the longest sequence
  int batch;   // sequences
  int packed;
  int kv_rows;                  // of a padded sequence; of the packed tensor
  long long all_keys;           // of all sequences
  int padded_blocks;            // of a padded sequence's rows; packed: below 0
  const int* first_blocks;      // number of each sequence's first block of rows; null: first_block_of()
  int round_batch, round_head;  // the sequence and the head of keys whose tiles are computed; below 0: all
  float score_scale;
  RowInput d_lse;
  Sinks sinks;
  float unit;  // BackwardRowsParams'
};
inline constexpr int kReadThreads = 256;  // of the kernels around the pass

/// The slot of 64 partial sums of rows (floats) for a block of rows, a head, and 64 keys.
constexpr long long row_slot(int number, int heads, int head, int group, int groups, bool apart) {
  const long long own = static_cast<long long>(number) * heads + head;
  return apart ? own * groups + group : own;
}
/// Slots of diagonals: distances 64 (group - block) + 0 to 63. A sequence has one block more than rows: distances below
/// its last block's. `first_block`: number of its first one.
constexpr long long diagonal_slot(int first_block, int sequence, int heads, int head, int block, int group, int groups,
                                  bool apart) {
  if (apart) return (static_cast<long long>(first_block + sequence + block) * heads + head) * groups + group;
  return static_cast<long long>(first_block + sequence * groups + block - group + groups - 1) * heads + head;
}
/// How many there are for `blocks` blocks of rows.
constexpr long long row_slots(long long blocks, int heads, int groups, bool apart) {
  return blocks * heads * (apart ? groups : 1);
}
constexpr long long diagonal_slots(long long blocks, int sequences, int heads, int groups, bool apart) {
  return apart ? (blocks + sequences) * heads * groups : (blocks + static_cast<long long>(sequences) * groups) * heads;
}

/// Partials are multiplied by 2 to this, and become integers, of which 2^bits have a sum below 2^62. `largest`: bits of
/// an f32 that is finite and not negative.
constexpr int fixed_exponent(unsigned largest, int bits) {
  const int exponent = static_cast<int>(largest >> 23) - 126;  // it is below 2 to this
  return 62 - bits - exponent;
}

}  // namespace heddle::shared
