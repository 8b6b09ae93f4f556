// forward_mma's parameters: what each run passes to the kernel. Read by the launchers and by the kernel itself: no
// headers but these, plain integers only.
#pragma once

#include "backend/portable/shared/forward_params.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

struct ForwardMmaParams : ForwardParams {
  TileList tiles;  // CTA c computes item c / splits. Of `run` and `tickets`: the words of tiles that are split
  RowFills fills;
  ListedTiles listed;  // device_lengths
  void* parts;         // splits: where the CTAs leave what they have found
  Descales descales;   // 8 bits
};

}  // namespace heddle::shared
