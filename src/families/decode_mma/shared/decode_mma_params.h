// decode_mma's parameters: what each run passes to the kernel. Read by the launchers and by the kernel itself: no headers
// but these, plain integers only.
#pragma once

#include "backend/portable/shared/forward_params.h"
#include "shared/sequences.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

/// A tile is a sequence's queries of some heads that read the same keys; a gang is as many CTAs as a sequence has tiles.
/// CTA c is number c % tiles of gang c / tiles.
struct DecodeMmaParams : ForwardParams {
  int sequences, tiles;     // of a sequence
  int tiles_of_kv_head;     // tiles whose heads read the same keys
  int q_rows;               // of the tensor
  int q_packed;             // its rows are packed sequences
  SequencesParams lengths;  // device_lengths: where they are; its spans and lists are not used
  TicketWord* words;        // [gangs][tiles]: of a tile that several CTAs share, in the first gang's row
  TicketWord run;           // number of this launch, not 0, below 2^(64 - kTicketBits)
  void* parts;              // what CTAs leave each other: decode_mma_memory.h
};

}  // namespace heddle::shared
