// backward_mma's parameters: what each run passes to its passes. The kernels around them take BackwardRowsParams, and
// all walk backward_sm90's lists. Read by the launchers and by the kernels themselves: no headers but these, plain
// integers only.
#pragma once

#include "shared/backward_lists.h"
#include "shared/backward_mma_config.h"
#include "shared/forward_mma.h"

namespace heddle::shared {

/// Floats of a block of 64 rows and a head: each of row_numbers() of all rows, then the next.
constexpr int portable_numbers(bool lse_rest) { return row_numbers(lse_rest) * kBlockRows; }

struct BackwardMmaParams {
  // CTA c computes part c % parts of item c / parts. With lengths on the device the list is that for the longest
  // sequences: a tile, or a step, may lie past the end.
  const BackwardItem* items;
  const QueryRun* runs;   // their blocks are of the steps' rows; `head` is a query head in both passes
  RowsOfTensor rows[2];   // of the tile: k and v, or q and dO
  RowsOfTensor steps[2];  // q and dO, or k and v
  int group;              // query heads that read one head of keys
  int q_heads;
  int padded_blocks;  // device_lengths: of a sequence's queries; below 0 where sequences are packed
  int padded_rows;    // rows of a gradient that are written of a sequence: with padding all; 0: those of the sequence
  float scale;        // what a product q.k is multiplied by: scale, times the factor of the score_mod
  float scale_log2;   // scale * log2(e); normalizer none: scale
  const float* numbers;  // portable_numbers() of each block and head
  RowGradient d_qk, d_v;
  ModValues mod;
};

}  // namespace heddle::shared
