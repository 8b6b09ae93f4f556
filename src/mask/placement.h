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
  double weight;             // of the mask
  double row_time;           // of a received row, over all heads and sequences and all layers of this mask
  double crossing_time = 0;  // of a row that comes from another host
};

/// All that placements are weighed by.
struct PlacementProblem {
  std::int64_t ranks = 1, chunk = 1, q_len = 0, kv_len = 0;
  std::vector<double> times;  // of attention, of each chunk of queries
  std::vector<WeighedNeeds> masks;
  bool keys_move = true;  // keys stand where their queries stand
  Owners key_owners;      // if they do not
  double exposed = 0;
  std::int64_t per_host = 0;   // ranks of each host, neighbours; 0: there is one host
  std::int64_t swaps = 12000;  // tried from one start, at most

  std::int64_t chunks() const { return static_cast<std::int64_t>(times.size()); }
  bool are_near(std::int64_t rank, std::int64_t other) const {
    return per_host == 0 || rank / per_host == other / per_host;
  }
};

/// How many chunks each rank may hold: equal numbers, one more for the first ones.
std::vector<std::int64_t> rooms_of(const PlacementProblem& problem);
/// Some chunks, ascending, and for each rank from `first` on the number of them that it may hold.
struct Placeable {
  std::vector<std::int64_t> chunks, rooms;
  std::int32_t first = 0;
  std::int32_t rank(std::size_t i) const { return first + static_cast<std::int32_t>(i); }
};
/// Writes the owners of these chunks.
void place(const PlacementProblem& problem, const Placeable& part, Placing placing, Owners& owners);
std::vector<RankLoad> loads_of(const PlacementProblem& problem, const Owners& owners);
double cost_of(const PlacementProblem& problem, std::span<const RankLoad> loads);
struct Swapped {
  Owners owners;
  double cost;  // as cost_of() has it, but for the rounding of its sums
};
/// Swaps pairs of chunks of a host, drawn by `seed`, as long as the cost falls. Ranks keep the number of their
/// chunks. What each rank takes from other hosts counts as it was at the start.
Swapped swapped(const PlacementProblem& problem, Owners owners, std::uint64_t seed);

}  // namespace heddle::mask
