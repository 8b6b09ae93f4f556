// Chunks of a sequence's keys whose boundaries depend on the sequence alone (kConfig.chunked). Each chunk is walked
// from nothing; the states of eight neighbours, a group, are folded in the order of the keys, and then the groups are.
// So a row's bits do not depend on which CTA walks what, and a CTA leaves few parts. Read by the planner and by the
// kernel: no headers but these, plain integers only.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"

namespace heddle::shared {

/// A sequence has up to so many chunks, which make kMostGroups groups.
inline constexpr int kMostChunks = 64, kChunksOfGroup = 8, kMostGroups = kMostChunks / kChunksOfGroup;
/// Parts that a CTA leaves: a group's, or what it has of a group's first chunks, of a tile that began here; likewise of
/// a tile that began in a gang before; and chunks of a group that began there.
inline constexpr int kPartsOfChunks = kMostGroups + (kMostGroups - 1) + (kChunksOfGroup - 1);

/// Keys of a chunk, unless a sequence is so long that there would be too many. Rows of 512 columns and more are so
/// large a part beside their keys that chunks are longer.
constexpr int least_chunk_keys(const ForwardMmaConfig& config) { return config.wide() ? 256 : 128; }

/// Units of each chunk but the last, of a sequence that has so many.
constexpr int chunk_units(const ForwardMmaConfig& config, int units) {
  const int least = config.kv_block < least_chunk_keys(config) ? least_chunk_keys(config) / config.kv_block : 1;
  const int most = kMostChunks * least;
  return (units + most - 1) / most * least;
}

}  // namespace heddle::shared
