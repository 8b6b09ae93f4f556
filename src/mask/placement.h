// Placements of chunks over ranks: the candidates, their predicted time, and swaps that lower it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "heddle/partition.h"
#include "mask/chunk_needs.h"

namespace heddle::mask {

/// Which rank holds each chunk.
using Owners = std::vector<std::int32_t>;

/// One of the masks, chunk by chunk.
struct WeighedNeeds {
  ChunkNeeds needs;
  double weight;    // of the mask
  double row_time;  // of a received row, over all heads and sequences and all layers of this mask
};

/// All that placements are weighed by.
struct PlacementProblem {
  std::int64_t ranks = 1, chunk = 1, q_len = 0, kv_len = 0;
  std::vector<double> times;  // of attention, of each chunk of queries
  std::vector<WeighedNeeds> masks;
  bool keys_move = true;  // keys stand where their queries stand
  Owners key_owners;      // if they do not
  double exposed = 0;

  std::int64_t chunks() const { return static_cast<std::int64_t>(times.size()); }
};

Owners placed(const PlacementProblem& problem, Placing placing);
std::vector<RankLoad> loads_of(const PlacementProblem& problem, const Owners& owners);
double cost_of(const PlacementProblem& problem, std::span<const RankLoad> loads);
struct Swapped {
  Owners owners;
  double cost;  // as cost_of() has it, but for the rounding of its sums
};
/// Swaps pairs of chunks, drawn by `seed`, as long as the cost falls. Ranks keep the number of their chunks.
Swapped swapped(const PlacementProblem& problem, Owners owners, std::uint64_t seed);

}  // namespace heddle::mask
