// backward_mma's parameters: what each run passes to its passes. The kernels around them take BackwardRowsParams, and
// all walk the lists of backward_tiles.h. Read by the launchers and by the kernels themselves: no headers but these,
// plain integers only.
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "shared/backward_lists.h"
#include "shared/mod_values.h"
#include "shared/strided.h"

namespace heddle::shared {

/// Reals of a block of 64 rows and a head: each of row_numbers() of all rows, then the next.
constexpr int portable_numbers(bool lse_rest) { return row_numbers(lse_rest) * kBlockRows; }

/// Which rows the place of a read's gradient depends on. pairs: on both kinds.
enum class ReadRows : int { none, keys, queries, pairs };
inline constexpr const char* kReadRows[] = {"none", "keys", "queries", "pairs"};
constexpr const char* name(ReadRows rows) { return kReadRows[static_cast<int>(rows)]; }

inline constexpr int kMostMmaReads = 16;
inline constexpr int kMostMmaSums = 16;  // gradients of captures and params

/// The sum of the gradient of one capture or param: CTAs add to it in any order. Elements are numbered row by row.
struct MmaSum {
  void* reals;
  int extent[4];  // 1 past the capture's rank
};

/// The factors of products.
template <class Real>
struct BackwardScales {
  Real scale;        // of a product q.k: scale, times the factor of the score_mod
  Real scale_log2;   // scale * log2(e); normalizer none: scale
  Real score_scale;  // what makes mods' scores of products
};

struct BackwardMmaParams {
  // CTA c computes slice c % slices of part c / slices % parts of item c / slices / parts; all_sequences: of so many
  // items as there are sequences, which stand beside each other. With lengths on the device the list is that for the
  // longest sequences: a tile, or a step, may lie past the end.
  const BackwardItem* items;
  const QueryRun* runs;   // their blocks are of the steps' rows; `head` is a query head in both passes
  RowsOfTensor rows[2];   // of the tile: k and v, or q and dO
  RowsOfTensor steps[2];  // q and dO, or k and v
  int group;              // query heads that read one head of keys
  int q_heads;
  int padded_blocks;  // device_lengths: of a sequence's queries; below 0 where sequences are packed
  int padded_rows;    // rows of a gradient that are written of a sequence: with padding all; 0: those of the sequence
  BackwardScales<float> scales;
  BackwardScales<double> wide_scales;  // the same, where reals are f64
  const void* numbers;                 // portable_numbers() of each block and head
  RowOutput d_qk, d_v;                 // d_qk without an address: the pass is for its reads alone
  ModValues mod;
  MmaSum sums[kMostMmaSums];
  int sequences;  // all_sequences
};

template <class Real>
constexpr const BackwardScales<Real>& scales_of(const BackwardMmaParams& params) {
  if constexpr (sizeof(Real) == 8) {
    return params.wide_scales;
  } else {
    return params.scales;
  }
}

/// Parameters of the kernels that clear the sums before the passes, and store the gradients after them.
struct MmaSumsParams {
  struct Stored {
    void* data;
    long long stride[4], count;
    MmaSum sum;
  };
  void* reals;  // of all sums, one after the other
  long long all;
  int ctas;  // of each kernel
  Stored stored[kMostMmaSums];
};
inline constexpr int kSumThreads = 256;

}  // namespace heddle::shared
