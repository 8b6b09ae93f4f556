#include "mask/placement.h"

#include <algorithm>

namespace heddle::mask {
namespace {

/// Rank after rank.
void contiguous(const Placeable& part, Owners& owners) {
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < part.rooms.size(); ++rank) {
    for (std::int64_t i = 0; i < part.rooms[rank]; ++i)
      owners[static_cast<std::size_t>(part.chunks[at++])] = part.rank(rank);
  }
}

/// The chunks in 2 N equal parts, of which rank r holds part r and part 2 N - 1 - r. So each rank has two ranges.
void zigzag(const Placeable& part, Owners& owners) {
  std::size_t begin = 0, end = part.chunks.size();
  for (std::size_t rank = 0; rank < part.rooms.size(); ++rank) {
    const std::int64_t back = part.rooms[rank] / 2, front = part.rooms[rank] - back;
    for (std::int64_t i = 0; i < front; ++i) owners[static_cast<std::size_t>(part.chunks[begin++])] = part.rank(rank);
    for (std::int64_t i = 0; i < back; ++i) owners[static_cast<std::size_t>(part.chunks[--end])] = part.rank(rank);
  }
}

/// The rank with room that has the least to do.
std::size_t idlest(std::span<const double> loads, std::span<const std::int64_t> rooms) {
  std::size_t found = loads.size();
  for (std::size_t rank = 0; rank < loads.size(); ++rank) {
    if (rooms[rank] > 0 && (found == loads.size() || loads[rank] < loads[found])) found = rank;
  }
  return found;
}

void heap(const PlacementProblem& problem, const Placeable& part, Owners& owners) {
  std::vector<std::int64_t> rooms = part.rooms, order = part.chunks;
  const auto time_of = [&](std::int64_t c) { return problem.times[static_cast<std::size_t>(c)]; };
  std::ranges::stable_sort(order, std::ranges::greater(), time_of);
  std::vector<double> loads(rooms.size());
  for (const std::int64_t c : order) {
    const std::size_t rank = idlest(loads, rooms);
    owners[static_cast<std::size_t>(c)] = part.rank(rank);
    loads[rank] += time_of(c);
    --rooms[rank];
  }
}

struct Group {
  std::size_t begin, end;  // among the part's chunks
  double time;
};

std::vector<Group> documents_of(const PlacementProblem& problem, const Placeable& part) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < part.chunks.size(); ++i) {
    const std::int64_t c = part.chunks[i];
    const bool is_first =
        i == 0 || part.chunks[i - 1] + 1 != c ||
        std::ranges::all_of(problem.masks, [&](const auto& mask) { return mask.needs.ends_alone(c); });
    if (is_first) groups.push_back({i, i, 0});
    groups.back().end = i + 1;
    groups.back().time += problem.times[static_cast<std::size_t>(c)];
  }
  return groups;
}

/// The longest group first, to the idlest rank that has room for it whole; else it is cut where the roomiest one is
/// full.
void documents(const PlacementProblem& problem, const Placeable& part, Owners& owners) {
  std::vector<Group> groups = documents_of(problem, part);
  std::ranges::stable_sort(groups, std::ranges::greater(), &Group::time);
  std::vector<std::int64_t> rooms = part.rooms;
  std::vector<double> loads(rooms.size());
  for (Group group : groups) {
    while (group.begin < group.end) {
      const auto left = static_cast<std::int64_t>(group.end - group.begin);
      std::vector<std::int64_t> fitting = rooms;
      for (std::int64_t& room : fitting) room = room >= left ? room : 0;
      std::size_t rank = idlest(loads, fitting);
      if (rank == loads.size()) rank = static_cast<std::size_t>(std::ranges::max_element(rooms) - rooms.begin());
      const std::size_t end = group.begin + static_cast<std::size_t>(std::min(left, rooms[rank]));
      rooms[rank] -= static_cast<std::int64_t>(end - group.begin);
      for (; group.begin < end; ++group.begin) {
        const auto c = static_cast<std::size_t>(part.chunks[group.begin]);
        owners[c] = part.rank(rank);
        loads[rank] += problem.times[c];
      }
    }
  }
}

/// Adds what each host takes from others: a row once for all of its ranks, by the rank of its owner's number.
void add_crossing(const PlacementProblem& problem, const WeighedNeeds& mask, const Bits& needed,
                  const Owners& key_owners, std::vector<RankLoad>& loads) {
  const std::int64_t words = mask.needs.words(), per_host = problem.per_host;
  for (std::int64_t first = 0; first < problem.ranks; first += per_host) {
    Bits of_host(static_cast<std::size_t>(words));
    for (std::int64_t i = 0; i < per_host * words; ++i) {
      of_host[static_cast<std::size_t>(i % words)] |= needed[static_cast<std::size_t>(first * words + i)];
    }
    for (std::int64_t k = 0; k < mask.needs.keys(); ++k) {
      const std::int64_t owner = key_owners[static_cast<std::size_t>(k)];
      if (problem.are_near(owner, first) || !has(of_host.data(), k)) continue;
      const auto rows = static_cast<double>(std::min(problem.kv_len, (k + 1) * problem.chunk) - k * problem.chunk);
      RankLoad& load = loads[static_cast<std::size_t>(first + owner % per_host)];
      load.crossing += mask.weight * rows;
      load.exchange += mask.crossing_time * rows;
    }
  }
}

}  // namespace

std::vector<std::int64_t> rooms_of(const PlacementProblem& problem) {
  std::vector<std::int64_t> rooms(static_cast<std::size_t>(problem.ranks), problem.chunks() / problem.ranks);
  for (std::int64_t rank = 0; rank < problem.chunks() % problem.ranks; ++rank) ++rooms[static_cast<std::size_t>(rank)];
  return rooms;
}

void place(const PlacementProblem& problem, const Placeable& part, Placing placing, Owners& owners) {
  switch (placing) {
    case Placing::contiguous:
      return contiguous(part, owners);
    case Placing::zigzag:
      return zigzag(part, owners);
    case Placing::documents:
      return documents(problem, part, owners);
    case Placing::heap:
      return heap(problem, part, owners);
  }
}

std::vector<RankLoad> loads_of(const PlacementProblem& problem, const Owners& owners) {
  std::vector<RankLoad> loads(static_cast<std::size_t>(problem.ranks));
  for (std::size_t c = 0; c < owners.size(); ++c) {
    loads[static_cast<std::size_t>(owners[c])].attention += problem.times[c];
  }
  const Owners& key_owners = problem.keys_move ? owners : problem.key_owners;
  for (const WeighedNeeds& mask : problem.masks) {
    const std::int64_t words = mask.needs.words();
    Bits needed(static_cast<std::size_t>(problem.ranks * words));
    for (std::size_t c = 0; c < owners.size(); ++c) {
      std::uint64_t* of_rank = needed.data() + owners[c] * words;
      const std::uint64_t* of_chunk = mask.needs.of(static_cast<std::int64_t>(c));
      for (std::int64_t word = 0; word < words; ++word) of_rank[word] |= of_chunk[word];
    }
    for (std::int64_t k = 0; k < mask.needs.keys(); ++k) {
      const std::int64_t rows = std::min(problem.kv_len, (k + 1) * problem.chunk) - k * problem.chunk;
      for (std::int64_t rank = 0; rank < problem.ranks; ++rank) {
        if (key_owners[static_cast<std::size_t>(k)] == rank || !has(needed.data() + rank * words, k)) continue;
        RankLoad& load = loads[static_cast<std::size_t>(rank)];
        load.received += mask.weight * static_cast<double>(rows);
        load.exchange += mask.row_time * static_cast<double>(rows);
      }
    }
    if (problem.per_host != 0) add_crossing(problem, mask, needed, key_owners, loads);
  }
  return loads;
}

double cost_of(const PlacementProblem& problem, std::span<const RankLoad> loads) {
  constexpr double kEvenEnough = 1.03;  // of the mean: below it, fewer rows are worth more than balance
  double attention = 0, exchange = 0, slowest = 0;
  for (const RankLoad& load : loads) {
    attention += load.attention;
    exchange += load.exchange;
    slowest = std::max({slowest, load.attention, load.exchange});
  }
  const auto ranks = static_cast<double>(problem.ranks);
  return std::max(slowest, kEvenEnough * attention / ranks) + problem.exposed * exchange / ranks;
}

}  // namespace heddle::mask
