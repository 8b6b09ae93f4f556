// forward_sm90's parameters: what each run passes to the kernel beside the tensor maps. Read by the launcher, and by
// the kernel itself when NVRTC compiles it: no headers but these, plain integers only.
#pragma once

#include "shared/mask_bits.h"
#include "shared/mod_forms.h"
#include "shared/mod_values.h"
#include "shared/paging.h"
#include "shared/storage.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

/// The kernel's parameters beside the four tensor maps (q, k, v, o).
struct ForwardSm90Params {
  TileList tiles;
  RowFills fills;
  int mask_repeats_to;  // masks by distance: that part is the same in the next block of keys, up to this kv_idx - q_idx
  WalkedTensors tensors;
  FlatDistances flat;  // distant
  Cap cap;             // capped
  float scale;         // what a product q.k is multiplied by: scale, times the factor of the score_mod
  float scale_log2;    // scale * log2(e); normalizer none: scale
  int group;           // packed: query heads that read one head of keys
  Outputs outputs;
  ModValues mod;
  Sinks sinks;
  ListedTiles listed;      // device_lengths
  Pages pages;             // page_rows
  Descales descales;       // 8 bits
  StoredWords mask_words;  // stored masks
  RowNumbers max_scores;
  RowNumbers lse_rest;
  float natural[2];  // lse_rest: powers of two times the sum of these two are natural
};

}  // namespace heddle::shared
