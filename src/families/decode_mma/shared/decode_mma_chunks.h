// Chunks of a sequence's keys whose boundaries depend on the sequence alone (kConfig.chunked()). Each chunk is walked
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

/// Keys of the shortest chunks, and those that longer sequences have more chunks of instead of longer ones. Rows of 512
/// columns and more are so large a part beside their keys that their chunks are longer.
constexpr int least_chunk_keys(const ForwardMmaConfig& config) {
  return config.takes_turns() ? 1024 : config.wide() ? 256 : 128;
}
inline constexpr int kLongChunkKeys = 2048;

/// Units of each chunk but the last, of a sequence that has so many: config.chunks chunks, or up to kMostChunks where
/// they would be longer than kLongChunkKeys.
constexpr int chunk_units(const ForwardMmaConfig& config, int units) {
  const auto units_in = [&](int keys) { return config.kv_block < keys ? keys / config.kv_block : 1; };
  const int least = units_in(least_chunk_keys(config)), longer = units_in(kLongChunkKeys);
  const int usual = (units + config.chunks - 1) / config.chunks, shortest = (units + kMostChunks - 1) / kMostChunks;
  const int each = usual <= longer ? usual : longer > shortest ? longer : shortest;
  return (each + least - 1) / least * least;
}

}  // namespace heddle::shared
