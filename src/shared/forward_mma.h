// forward_mma's parameters: what each run passes to the kernel. Read by the launchers and by the kernel itself: no
// headers but these, plain integers only.
#pragma once

#include "shared/mod_values.h"
#include "shared/paging.h"
#include "shared/storage.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

/// A tensor of rows: element strides of batch (of pages: page), head and row. Stride 0: all share one.
struct RowsOfTensor {
  const void* data;
  long long stride[3];
};

struct ForwardMmaParams {
  TileList tiles;  // CTA c computes item c / splits. Of `run` and `tickets`: the words of tiles that are split
  RowFills fills;
  RowsOfTensor q, k, v;
  int group;      // query heads that read one head of keys
  double scale;   // what a product q.k is multiplied by: scale, times the factor of the score_mod
  float scale32;  // the same, for all storage but f64
  Outputs outputs;
  ModValues mod;
  Sinks sinks;
  ListedTiles listed;   // device_lengths
  PageTable table;      // page_rows
  void* parts;          // splits: where the CTAs leave what they have found
  RowNumbers lse_rest;  // of lse's type, as outputs.lse is
};

}  // namespace heddle::shared
